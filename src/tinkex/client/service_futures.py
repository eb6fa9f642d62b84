"""What a ServiceClient creates and reads, as Futures.

The blocking and the awaited forms wait for them.
"""

from __future__ import annotations

from tinkex.client.call_errors import errors_in_futures
from tinkex.client.futures import Future
from tinkex.client.model_creation import create_from_state, create_model
from tinkex.client.retry import NO_RETRIES, RetryConfig, RetryPolicy, chosen_policy
from tinkex.client.sampler_creation import open_sampler
from tinkex.client.sampling import SamplingClient
from tinkex.client.shared_session import Holder
from tinkex.client.training import TrainingClient
from tinkex.client.transport import Call
from tinkex.errors import ValidationError
from tinkex.types.optimizers import OptimizerConfig
from tinkex.types.session import GetServerCapabilitiesResponse, HealthResponse
from tinkex.types.training import LoraConfig
from tinkex.wire import json as wire_json
from tinkex.wire.paths import TinkerPath

__all__ = ["ServiceFutures"]


@errors_in_futures
class ServiceFutures:
    """The Future-returning half of a ServiceClient."""

    _holder: Holder

    def get_server_capabilities_future(self) -> Future[GetServerCapabilitiesResponse]:
        """`get_server_capabilities`, without waiting."""
        return self._holder.submit(self._capabilities())

    async def _capabilities(self) -> GetServerCapabilitiesResponse:
        connection = await self._holder.connection()
        answer = await connection.transport.request(
            Call(method="GET", path="/get_server_capabilities")
        )
        return wire_json.decode(answer.body, GetServerCapabilitiesResponse)

    def get_server_health_future(self) -> Future[HealthResponse]:
        """`get_server_health`, without waiting."""
        return self._holder.submit(self._health())

    async def _health(self) -> HealthResponse:
        connection = await self._holder.connection()
        call = Call(method="GET", path="/healthz")
        answer = await connection.transport.request(call, NO_RETRIES)
        return wire_json.decode(answer.body, HealthResponse)

    def create_lora_training_client_future(
        self,
        base_model: str,
        rank: int = 32,
        seed: int | None = None,
        train_mlp: bool = True,
        train_attn: bool = True,
        train_unembed: bool = True,
        user_metadata: dict[str, str] | None = None,
        optimizer: OptimizerConfig | None = None,
        *,
        alpha: float | None = None,
    ) -> Future[TrainingClient]:
        """`create_lora_training_client`, without waiting."""
        lora = LoraConfig(
            rank=rank,
            seed=seed,
            train_mlp=train_mlp,
            train_attn=train_attn,
            train_unembed=train_unembed,
            alpha=alpha,
        )
        return self._holder.submit(self._create_model(base_model, lora, user_metadata, optimizer))

    async def _create_model(
        self,
        base_model: str,
        lora: LoraConfig,
        user_metadata: dict[str, str] | None,
        optimizer: OptimizerConfig | None,
    ) -> TrainingClient:
        session = await self._holder.session()
        return await create_model(session, base_model, lora, user_metadata, optimizer)

    def create_training_client_from_state_future(
        self,
        path: str,
        base_model: str | None = None,
        user_metadata: dict[str, str] | None = None,
        weights_access_token: str | None = None,
        optimizer: OptimizerConfig | None = None,
    ) -> Future[TrainingClient]:
        """`create_training_client_from_state`, without waiting."""
        work = self._from_state(
            path, base_model, user_metadata, weights_access_token, optimizer, resumes=False
        )
        return self._holder.submit(work)

    def create_training_client_from_state_with_optimizer_future(
        self,
        path: str,
        base_model: str | None = None,
        user_metadata: dict[str, str] | None = None,
        weights_access_token: str | None = None,
    ) -> Future[TrainingClient]:
        """`create_training_client_from_state_with_optimizer`, without waiting."""
        work = self._from_state(
            path, base_model, user_metadata, weights_access_token, None, resumes=True
        )
        return self._holder.submit(work)

    async def _from_state(
        self,
        path: str,
        base_model: str | None,
        user_metadata: dict[str, str] | None,
        weights_access_token: str | None,
        optimizer: OptimizerConfig | None,
        *,
        resumes: bool,
    ) -> TrainingClient:
        TinkerPath.parse(path)
        return await create_from_state(
            await self._holder.session(),
            path,
            base_model,
            user_metadata,
            weights_access_token,
            optimizer,
            resumes=resumes,
        )

    def create_sampling_client_future(
        self,
        model_path: str | None = None,
        base_model: str | None = None,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
        *,
        retry: RetryPolicy | None = None,
    ) -> Future[SamplingClient]:
        """`create_sampling_client`, without waiting."""
        work = self._open_sampler(
            model_path, base_model, retry_config, record_stability_info, retry
        )
        return self._holder.submit(work)

    async def _open_sampler(
        self,
        model_path: str | None,
        base_model: str | None,
        retry_config: RetryConfig | None,
        record_stability_info: bool,
        retry: RetryPolicy | None,
    ) -> SamplingClient:
        if model_path is None and base_model is None:
            raise ValidationError("Give model_path or base_model.")
        if model_path is not None:
            TinkerPath.parse(model_path)
        session = await self._holder.session()
        is_retrying = session.connection.config.retry_samples
        return await open_sampler(
            session,
            model_path=model_path,
            base_model=base_model,
            retry=chosen_policy(retry, retry_config, is_retrying=is_retrying),
            record_stability_info=record_stability_info,
        )
