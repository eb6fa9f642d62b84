"""What a TrainingClient creates and reads beside its numbered requests.

As Futures, which the blocking and the awaited forms wait for; those of samplers are in `training`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tinkex.client import weights_snapshot
from tinkex.client.call_errors import errors_in_futures
from tinkex.client.futures import Future
from tinkex.client.metric_log import MetricLog
from tinkex.client.model_operations import ModelWork
from tinkex.client.retry import RetryConfig, RetryPolicy
from tinkex.client.session import Session
from tinkex.client.weights_snapshot import SamplerOptions
from tinkex.tokenizers.tokenizer import load_tokenizer, resolve_tokenizer_id
from tinkex.types.requests import GetInfoRequest, UnloadModelRequest
from tinkex.types.runs import LogMetricsResponse
from tinkex.types.session import UnloadModelResponse
from tinkex.types.training import GetInfoResponse, ModelID

if TYPE_CHECKING:
    from tinkex.client.sampling import SamplingClient
    from tinkex.tokenizers.tokenizer import Tokenizer

__all__ = ["TrainingFutures"]


@errors_in_futures
class TrainingFutures:
    """Facts of a model and its end; the Future-returning forms of `create_*` and `get_*`."""

    model_id: ModelID
    _session: Session
    _work: ModelWork
    _metric_log: MetricLog

    def log_metrics(
        self, metrics: Mapping[str, float], step: int | None = None
    ) -> Future[LogMetricsResponse]:
        """Keeps numbers of your own with the run's metrics; those not finite are kept as missing.

        Without a `step` they count for the step that the calls made before this one lead to. The
        Future need not be waited for; only Tinkex servers keep metrics.

        Args:
            metrics: Numbers by name, such as `{"reward": 0.5}`.
            step: The step they belong to; None for the present one.

        Example: `training.log_metrics({"eval/accuracy": 0.5}).result()`.

        Raises:
            ValidationError: a value is no number, or the server does not keep metrics.
        """
        return self._metric_log.log(metrics, step)

    async def log_metrics_async(
        self, metrics: Mapping[str, float], step: int | None = None
    ) -> Future[LogMetricsResponse]:
        """`log_metrics`; await the Future it returns for the result."""
        return self.log_metrics(metrics, step)

    def save_weights_and_get_sampling_client_future(
        self,
        name: str | None = None,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
        *,
        retry: RetryPolicy | None = None,
    ) -> Future[SamplingClient]:
        """`save_weights_and_get_sampling_client`, without waiting."""
        options = SamplerOptions(retry_config, record_stability_info, retry)
        request = weights_snapshot.snapshot_request(self._session, self.model_id, name)
        return weights_snapshot.snapshot_sampler(self._session, self._work, request, options)

    def create_sampling_client_future(
        self,
        model_path: str,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
        *,
        retry: RetryPolicy | None = None,
    ) -> Future[SamplingClient]:
        """`create_sampling_client`, without waiting."""
        options = SamplerOptions(retry_config, record_stability_info, retry)
        opening = weights_snapshot.open_saved(self._session, model_path, options)
        return self._session.connection.runtime.submit(opening)

    def get_info_future(self) -> Future[GetInfoResponse]:
        """`get_info`, without waiting."""
        return self._session.connection.runtime.submit(self._info())

    async def _info(self) -> GetInfoResponse:
        return await self._session.connection.post(
            "/get_info",
            GetInfoRequest(model_id=self.model_id),
            GetInfoResponse,
            pool="session",
            about={"model_id": self.model_id},
        )

    def unload_model_future(self) -> Future[UnloadModelResponse]:
        """`unload_model`, without waiting."""
        return self._work.run(
            "/unload_model",
            UnloadModelRequest(model_id=self.model_id),
            UnloadModelResponse,
            "UnloadModel",
            is_numbered=False,
        )

    def get_tokenizer_future(self) -> Future[Tokenizer]:
        """`get_tokenizer`, without waiting."""
        return self._session.connection.runtime.submit(self._tokenizer())

    async def _tokenizer(self) -> Tokenizer:
        info = await self._info()
        name = info.model_data.model_name or info.model_name or ""
        return await asyncio.to_thread(
            load_tokenizer,
            resolve_tokenizer_id(name, info.model_data.tokenizer_id),
            cache=self._session.connection.runtime.tokenizers,
        )

    def unload_model(self) -> UnloadModelResponse:
        """Unloads the model for good, so that the server may drop its state; its checkpoints stay.

        Wait first for requests in flight: they may fail, and so may later ones.

        Example: `training.unload_model()`.
        """
        return self.unload_model_future().result()

    async def unload_model_async(self) -> UnloadModelResponse:
        """`unload_model`, awaited."""
        return await self.unload_model_future()

    def get_info(self) -> GetInfoResponse:
        """What the server knows about this model. Example: `training.get_info().model_data`."""
        return self.get_info_future().result()

    async def get_info_async(self) -> GetInfoResponse:
        """`get_info`, awaited."""
        return await self.get_info_future()

    def get_tokenizer(self) -> Tokenizer:
        """The tokenizer of this model's base.

        Example: `training.get_tokenizer().encode("Hello")`.

        Raises:
            TokenizerError: it is neither on this machine nor to be had.
        """
        return self.get_tokenizer_future().result()

    async def get_tokenizer_async(self) -> Tokenizer:
        """`get_tokenizer`, awaited."""
        return await self.get_tokenizer_future()
