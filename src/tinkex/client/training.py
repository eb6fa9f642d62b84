"""TrainingClient: one model being trained.

Every operation takes its place in the model's order in the caller's thread, is sent in that order,
and hands out a Future at once. Nothing is applied twice: the server knows each (model, number).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

from tinkex.client.call_errors import errors_in_futures
from tinkex.client.custom_pass import run_custom
from tinkex.client.futures import Future
from tinkex.client.loss_handle import LossHandle
from tinkex.client.metric_log import MetricLog
from tinkex.client.model_operations import LossConfig, ModelWork
from tinkex.client.page_links import RunPage
from tinkex.client.queue_watch import QueueObserver
from tinkex.client.retry import RetryConfig, RetryPolicy
from tinkex.client.session import Session
from tinkex.client.training_futures import TrainingFutures
from tinkex.client.training_states import TrainingStates
from tinkex.errors import ValidationError
from tinkex.types.datum import Datum
from tinkex.types.optimizers import AdamParams, OptimParams, optimizer_name
from tinkex.types.requests import OptimStepRequest
from tinkex.types.training import ForwardBackwardOutput, LossFnType, ModelID, OptimStepResponse

if TYPE_CHECKING:
    from tinkex.client.custom_loss import CustomLossFn
    from tinkex.client.sampling import SamplingClient


@errors_in_futures
class TrainingClient(TrainingStates, TrainingFutures, RunPage):
    """Trains one LoRA adapter.

    ```python
    training = service.create_lora_training_client(base_model="smollm2-135m", rank=16)
    step = training.forward_backward(batch, "cross_entropy")
    training.optim_step(AdamParams(learning_rate=1e-4))
    print(step.result().metrics["loss:sum"])
    ```
    """

    def __init__(self, session: Session, model_id: ModelID) -> None:
        self.model_id = model_id
        self._session = session
        self._connection = session.connection
        self._base_url = session.connection.config.normalized_base_url
        self._runtime = session.connection.runtime
        self._work = ModelWork(session, model_id)
        self._metric_log = MetricLog(session, model_id, self._work.order)

    @property
    def queue_observer(self) -> QueueObserver | None:
        """Called when the server says that this model's requests are paused, or run again."""
        return self._work.queue_observer

    @queue_observer.setter
    def queue_observer(self, observer: QueueObserver | None) -> None:
        self._work.queue_observer = observer

    def __repr__(self) -> str:
        return f"<TrainingClient {self.model_id}>"

    # Batches ----------------------------------------------------------------------------------

    def forward(
        self, data: Sequence[Datum], loss_fn: LossFnType, loss_fn_config: LossConfig | None = None
    ) -> Future[ForwardBackwardOutput]:
        """Logprobs and loss of a batch, without gradients.

        Args:
            data: The examples; large batches are sent in pieces.
            loss_fn: The name of a loss, such as `cross_entropy` or `ppo`.
            loss_fn_config: Settings of the loss by name, such as `{"clip_high_threshold":
                1.3}`.

        Example: `training.forward(data, "cross_entropy").result().metrics["loss:sum"]`.

        Raises:
            ValidationError: the batch is empty, or something in it cannot be sent.
        """
        return self._work.run_batch(data, loss_fn, loss_fn_config, forward_only=True)

    async def forward_async(
        self, data: Sequence[Datum], loss_fn: LossFnType, loss_fn_config: LossConfig | None = None
    ) -> Future[ForwardBackwardOutput]:
        """`forward`; await the Future it returns for the result."""
        return self.forward(data, loss_fn, loss_fn_config)

    def forward_backward(
        self, data: Sequence[Datum], loss_fn: LossFnType, loss_fn_config: LossConfig | None = None
    ) -> Future[ForwardBackwardOutput]:
        """Logprobs and loss of a batch; its gradients are added to those already pending.

        Args:
            data: The examples; large batches are sent in pieces.
            loss_fn: The name of a loss, such as `cross_entropy` or `ppo`.
            loss_fn_config: Settings of the loss by name, such as `{"clip_high_threshold":
                1.3}`.

        Example: `training.forward_backward(data, "cross_entropy").result().metrics`.

        Raises:
            ValidationError: the batch is empty, or something in it cannot be sent.
        """
        return self._work.run_batch(data, loss_fn, loss_fn_config, forward_only=False)

    async def forward_backward_async(
        self, data: Sequence[Datum], loss_fn: LossFnType, loss_fn_config: LossConfig | None = None
    ) -> Future[ForwardBackwardOutput]:
        """`forward_backward`; await the Future it returns for the result."""
        return self.forward_backward(data, loss_fn, loss_fn_config)

    def forward_backward_custom(
        self,
        data: Sequence[Datum],
        loss_fn: CustomLossFn | LossHandle,
        *,
        loss_type_input: Literal["logprobs"] | None = None,
    ) -> Future[ForwardBackwardOutput]:
        """Gradients of a loss of your own: `loss_fn(data, logprobs) -> (loss, metrics)`.

        Scores the batch, calls `loss_fn` in a thread of its own, then sends the gradient; later
        requests of this model wait for that. A LossHandle that the server runs costs one
        pass. Needs torch.

        Args:
            data: The examples.
            loss_fn: The function, or what `ServiceClient.create_custom_loss` gave.
            loss_type_input: What the loss is computed from; there are only logprobs.

        Example: `training.forward_backward_custom(data, loss_fn).result().metrics`.

        Raises:
            ValidationError: an example does not fit the loss, or the loss is not one.
        """
        return run_custom(self._session, self._work, data, loss_fn)

    async def forward_backward_custom_async(
        self,
        data: Sequence[Datum],
        loss_fn: CustomLossFn | LossHandle,
        *,
        loss_type_input: Literal["logprobs"] | None = None,
    ) -> Future[ForwardBackwardOutput]:
        """`forward_backward_custom`; await the Future it returns for the result."""
        return self.forward_backward_custom(data, loss_fn, loss_type_input=loss_type_input)

    # Steps ----------------------------------------------------------------------------------------

    def optim_step(
        self, optim_params: OptimParams | None = None, *, adam_params: AdamParams | None = None
    ) -> Future[OptimStepResponse]:
        """One optimizer step over the pending gradients, which are then cleared.

        Args:
            optim_params: The step's parameters, such as the learning rate.
            adam_params: The same, under the name the official client had first.

        Example: `training.optim_step(types.AdamParams(learning_rate=1e-4)).result()`.

        Raises:
            ValidationError: neither, or both, of the parameters are given, or they are of an
                optimizer the server does not have.
        """
        params = _one_of(optim_params, adam_params)
        self._session.connection.require_optimizer(optimizer_name(params))
        return self._work.run(
            "/optim_step",
            OptimStepRequest(
                model_id=self.model_id,
                adam_params=params if isinstance(params, AdamParams) else None,
                optimizer_params=None if isinstance(params, AdamParams) else params,
            ),
            OptimStepResponse,
            "OptimStep",
        )

    async def optim_step_async(
        self, optim_params: OptimParams | None = None, *, adam_params: AdamParams | None = None
    ) -> Future[OptimStepResponse]:
        """`optim_step`; await the Future it returns for the result."""
        return self.optim_step(optim_params, adam_params=adam_params)

    # Samplers -------------------------------------------------------------------------------------

    def save_weights_and_get_sampling_client(
        self,
        name: str | None = None,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
        *,
        retry: RetryPolicy | None = None,
    ) -> SamplingClient:
        """A client that samples from the weights as they are now.

        Args:
            name: Keeps the weights under this name; without one they are dropped once they are
                not used.
            retry_config: Retries under the official SDK's names.
            record_stability_info: Whether the server records what is needed to follow up
                unstable numbers.
            retry: How errors of samples are retried; without one they are raised at once.

        Example: `training.save_weights_and_get_sampling_client()`.
        """
        return self.save_weights_and_get_sampling_client_future(
            name, retry_config, record_stability_info, retry=retry
        ).result()

    async def save_weights_and_get_sampling_client_async(
        self,
        name: str | None = None,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
        *,
        retry: RetryPolicy | None = None,
    ) -> SamplingClient:
        """`save_weights_and_get_sampling_client`, awaited."""
        return await self.save_weights_and_get_sampling_client_future(
            name, retry_config, record_stability_info, retry=retry
        )

    def create_sampling_client(
        self,
        model_path: str,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
        *,
        retry: RetryPolicy | None = None,
    ) -> SamplingClient:
        """A client that samples from saved weights.

        Args:
            model_path: The weights, as `save_weights_for_sampler` gave them.
            retry_config: Retries under the official SDK's names.
            record_stability_info: Whether the server records what is needed to follow up
                unstable numbers.
            retry: How errors of samples are retried; without one they are raised at once.

        Example: `training.create_sampling_client(path)`.
        """
        return self.create_sampling_client_future(
            model_path, retry_config, record_stability_info, retry=retry
        ).result()

    async def create_sampling_client_async(
        self,
        model_path: str,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
        *,
        retry: RetryPolicy | None = None,
    ) -> SamplingClient:
        """`create_sampling_client`, awaited."""
        return await self.create_sampling_client_future(
            model_path, retry_config, record_stability_info, retry=retry
        )


def _one_of(optim_params: OptimParams | None, adam_params: AdamParams | None) -> OptimParams:
    if optim_params is not None and adam_params is not None:
        raise ValidationError("Give optim_params or adam_params, not both.")
    params = optim_params or adam_params
    if not isinstance(params, OptimParams):
        known = ", ".join(each.__name__ for each in get_args(OptimParams))
        raise ValidationError(f"optim_step needs one of {known}, not {type(params).__name__}.")
    return params
