"""ServiceClient: where every program begins."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from tinkex.client.call_errors import errors_in_futures
from tinkex.client.futures import Future
from tinkex.client.hub_push import HubPush
from tinkex.client.logs import show_log
from tinkex.client.loss_handle import LossHandle, make_handle
from tinkex.client.loss_trace import PerDatumLossFn, TracedLoss, trace
from tinkex.client.page_links import ServerPage
from tinkex.client.rest import RestClient
from tinkex.client.retry import RetryConfig, RetryPolicy
from tinkex.client.runtime import Runtime, default_runtime
from tinkex.client.sampling import SamplingClient
from tinkex.client.session import FinishStatus
from tinkex.client.shared_session import Holder
from tinkex.client.training_creation import TrainingCreation
from tinkex.config import Config
from tinkex.errors import TinkexError
from tinkex.types.custom_loss import CustomLossInputRank
from tinkex.types.session import GetServerCapabilitiesResponse, HealthResponse

log = logging.getLogger("tinkex")

CLOSE_PATIENCE_S = 5.0


@errors_in_futures
class ServiceClient(TrainingCreation, HubPush, ServerPage):
    """A server, seen by one tenant: makes training, sampling and REST clients.

    ```python
    with ServiceClient(base_url="http://127.0.0.1:8000", api_key="tml-...") as service:
        training = service.create_lora_training_client(base_model="smollm2-135m", rank=16)
    ```

    Nothing is sent before it is needed. What blocks (`create_*`, `get_*`) has a twin that is
    awaited (`..._async`) and one that gives a Future (`..._future`).

    Args:
        user_metadata: Texts of your own that are kept with the session.
        project_id: The project that the session belongs to.
        display_name: A name for the session, which people see in lists.
        base_url: The server's address.
        api_key: The key; by default that of the environment or of `tinkex auth login`.
        default_headers_overrides: Headers that go with every request.
        config: Every setting; the arguments above override it.
        runtime: The thread that does the work; by default the one all clients share.
    """

    def __init__(
        self,
        user_metadata: dict[str, str] | None = None,
        project_id: str | None = None,
        *,
        display_name: str | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        default_headers_overrides: Mapping[str, str] | None = None,
        config: Config | None = None,
        runtime: Runtime | None = None,
        **unknown: Any,
    ) -> None:
        if unknown:
            warnings.warn(
                f"ServiceClient does not know {', '.join(sorted(unknown))}.", stacklevel=2
            )
        given = {
            "user_metadata": user_metadata,
            "project_id": project_id,
            "base_url": base_url,
            "api_key": api_key,
            "default_headers": default_headers_overrides,
        }
        self.config = merged_config(config, given)
        self.config.require_api_key()
        show_log(self.config.log_level)
        self._holder = Holder(runtime or default_runtime(), self.config, display_name)

    @classmethod
    def start(cls, config: Config | None = None, **options: Any) -> Self:
        """A client whose session is already open, so that a wrong key or address fails here.

        Args:
            config: The settings.
            **options: What `ServiceClient` takes beside them.

        Example: `ServiceClient.start(base_url=base_url, api_key=api_key)`.
        """
        client = cls(config=config, **options)
        client._holder.submit(client._holder.session()).result()
        return client

    def __repr__(self) -> str:
        return f"<ServiceClient {self.config.normalized_base_url}>"

    # The server -------------------------------------------------------------------------------

    def get_server_capabilities(self) -> GetServerCapabilitiesResponse:
        """Which models the server offers.

        Example: `service.get_server_capabilities().supported_models`.
        """
        return self.get_server_capabilities_future().result()

    async def get_server_capabilities_async(self) -> GetServerCapabilitiesResponse:
        """`get_server_capabilities`, awaited."""
        return await self.get_server_capabilities_future()

    def get_server_health(self) -> HealthResponse:
        """Whether the server takes work now: one request, without retries.

        Example: `service.get_server_health().status`.

        Raises:
            APIStatusError: it does not, such as while it starts or stops.
            APIConnectionError: no server answers.
        """
        return self.get_server_health_future().result()

    async def get_server_health_async(self) -> HealthResponse:
        """`get_server_health`, awaited."""
        return await self.get_server_health_future()

    # Losses -----------------------------------------------------------------------------------

    def create_custom_loss(
        self, fn: PerDatumLossFn, input_ranks: Mapping[str, CustomLossInputRank]
    ) -> Future[LossHandle]:
        """A loss of your own for `TrainingClient.forward_backward_custom`.

        Where the server runs such losses it is uploaded, once for each session; elsewhere it runs
        here. Needs torch.

        Args:
            fn: `fn(logprobs, *inputs) -> (loss, metrics)`, for one example; the losses are
                summed.
            input_ranks: How many dimensions each parameter of `fn` has, by name.

        Example: `service.create_custom_loss(loss, {"logprobs": 1, "weights": 1}).result()`.

        Raises:
            ValidationError: the function cannot be traced, or breaks a rule of custom losses.
        """
        return self._holder.submit(self._make_loss(trace(fn, input_ranks)))

    async def _make_loss(self, traced: TracedLoss) -> LossHandle:
        return await make_handle(await self._holder.session(), traced)

    # Sampling ---------------------------------------------------------------------------------

    def create_sampling_client(
        self,
        model_path: str | None = None,
        base_model: str | None = None,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
        *,
        retry: RetryPolicy | None = None,
    ) -> SamplingClient:
        """A client that samples from saved weights or from a base model.

        With both, it samples from the saved weights. Errors come back at once; pass
        `retry=RetryPolicy(...)` to have them retried.

        Args:
            model_path: Saved weights, as `tinker://RUN/sampler_weights/NAME`.
            base_model: The base model to sample from, if no weights are given.
            retry_config: Retries under the official SDK's names.
            record_stability_info: Whether the server records what is needed to follow up
                unstable numbers.
            retry: How errors of samples are retried; without one they are raised at once.

        Example: `service.create_sampling_client(base_model="smollm2-135m")`.

        Raises:
            ValidationError: neither model_path nor base_model is given.
        """
        return self.create_sampling_client_future(
            model_path, base_model, retry_config, record_stability_info, retry=retry
        ).result()

    async def create_sampling_client_async(
        self,
        model_path: str | None = None,
        base_model: str | None = None,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
        *,
        retry: RetryPolicy | None = None,
    ) -> SamplingClient:
        """`create_sampling_client`, awaited."""
        return await self.create_sampling_client_future(
            model_path, base_model, retry_config, record_stability_info, retry=retry
        )

    # The rest, and the end ------------------------------------------------------------------------

    def create_rest_client(self) -> RestClient:
        """A client for runs, checkpoints and sessions.

        Example: `service.create_rest_client().whoami().result()`.
        """
        return RestClient(self._holder)

    def copy_weights(
        self,
        path: str,
        *,
        ttl_seconds: int | None = None,
        weights_access_token: str | None = None,
    ) -> Future[str]:
        """Copies saved weights into this client's project; gives the copy's path.

        Args:
            path: The weights, as `tinker://RUN/KIND/NAME`.
            ttl_seconds: Seconds until the copy expires; None never.
            weights_access_token: The key of another account, if the weights are that one's.

        Example: `service.copy_weights(path).result()`.
        """
        return self.create_rest_client().copy_weights(
            path,
            self.config.project_id,
            ttl_seconds=ttl_seconds,
            weights_access_token=weights_access_token,
        )

    def close(self, status: FinishStatus = "success", detail: str | None = None) -> Future[None]:
        """Finishes the session and stops its heartbeat; safe to repeat.

        Args:
            status: How the session ended: `success`, `errored` or `interrupted`.
            detail: Why, in a few words, for the server's log.

        Example: `service.close().result()`.
        """
        return self._holder.close(status, detail)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        ending = self.close(_status_of(kind), None if kind is None else kind.__name__)
        outcome = ending.outcome(CLOSE_PATIENCE_S)
        _note_unclean_end(outcome.error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        ending = self.close(_status_of(kind), None if kind is None else kind.__name__)
        outcome = await ending.outcome_async(CLOSE_PATIENCE_S)
        _note_unclean_end(outcome.error)


def merged_config(config: Config | None, given: dict[str, Any]) -> Config:
    """The config with the given settings on top; None means not given."""
    settings = {name: value for name, value in given.items() if value is not None}
    if config is None:
        return Config(**settings)
    return config.replace(**settings) if settings else config


def _status_of(kind: type[BaseException] | None) -> FinishStatus:
    if kind is None:
        return "success"
    return "errored" if issubclass(kind, Exception) else "interrupted"


def _note_unclean_end(error: TinkexError | None) -> None:
    if error is not None:
        log.warning("the session was not finished cleanly: %s", error.message)
