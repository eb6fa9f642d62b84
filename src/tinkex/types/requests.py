"""Request bodies: one struct each.

Fields stand in the order in which the protocol's clients write them. Values that are None are left
out, other defaults are written; `FinishSessionRequest` and `SetTTLRequest` do write null. Searching
sessions has its own file, `search`, and so has what a `custom_loss` holds. `ForwardBackwardRequest`
travels as protobuf.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec

from tinkex.errors import ValidationError
from tinkex.types._fields import sent
from tinkex.types._model import ProtocolModel
from tinkex.types.custom_loss import CustomLossGraph, CustomLossInput
from tinkex.types.datum import Datum
from tinkex.types.model_input import ModelInput
from tinkex.types.optimizers import (
    AdamOptimizerConfig,
    AdamParams,
    OptimizerConfig,
    OptimParams,
    TaggedOptimParams,
)
from tinkex.types.sampling import SamplingParams
from tinkex.types.session import ClientSessionFinishReason
from tinkex.types.tensor import TensorData
from tinkex.types.training import LoraConfig, ModelID, RequestID

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A number that is never negative and fits 64 bits; checked where a body is read."""


class _Request(ProtocolModel, frozen=True, kw_only=True, omit_defaults=True):
    """Base of request bodies: fields that are None are left out."""


class ClientConfigRequest(_Request, frozen=True, kw_only=True):
    """Requests the client configuration, static or dynamic."""

    sdk_version: str


class AuthTokenRequest(_Request, frozen=True, kw_only=True):
    """Exchanges the key in the header for a token."""


class CreateSessionRequest(_Request, frozen=True, kw_only=True):
    """Opens a session."""

    tags: list[str]
    user_metadata: dict[str, Any] | None
    sdk_version: str
    project_id: str | None = None
    display_name: str | None = None
    type: Literal["create_session"] = sent("create_session")


class SessionHeartbeatRequest(_Request, frozen=True, kw_only=True):
    """Says that the client is alive."""

    session_id: str
    type: Literal["session_heartbeat"] = sent("session_heartbeat")


class FinishSessionRequest(ProtocolModel, frozen=True, kw_only=True):
    """Ends a session."""

    reason: ClientSessionFinishReason
    detail: str | None = None


class AssignProjectRequest(_Request, frozen=True, kw_only=True):
    """Moves a session to a project."""

    project_id: str


class CreateModelRequest(_Request, frozen=True, kw_only=True):
    """Makes a model to train."""

    session_id: str
    model_seq_id: Count
    base_model: str
    user_metadata: dict[str, Any] | None = None
    lora_config: LoraConfig | None = None
    optimizer_config: OptimizerConfig = sent(AdamOptimizerConfig())
    type: Literal["create_model"] = sent("create_model")


class LogMetricsRequest(_Request, frozen=True, kw_only=True):
    """Adds a point to a run's metrics; None stands for a number that is not finite.

    Without a `step` it is that of the run now, or after the request numbered `after_seq`. Sent
    again with the same `log_id`, it is kept once.
    """

    metrics: dict[str, float | None]
    step: Count | None = None
    after_seq: Count | None = None
    log_id: str | None = None


class UpdateRunRequest(_Request, frozen=True, kw_only=True):
    """Names or tags a run, and those it is resumed from or by; an empty name takes it away."""

    name: str | None = None
    tags: dict[str, str] | None = None


class GetInfoRequest(_Request, frozen=True, kw_only=True):
    """Requests the facts of a training model."""

    model_id: ModelID
    type: Literal["get_info"] = sent("get_info")


class UnloadModelRequest(_Request, frozen=True, kw_only=True):
    """Lets a model leave the server's memory; sent by older clients only."""

    model_id: ModelID
    type: Literal["unload_model"] = sent("unload_model")


class ForwardBackwardRequest(ProtocolModel, frozen=True, kw_only=True):
    """Runs a batch forward and, unless `forward_only`, backward.

    `seq_id` is 0 if an old client did not number its requests.
    """

    model_id: ModelID
    seq_id: int = 0
    data: list[Datum]
    loss_fn: str
    loss_fn_config: dict[str, float | str] = {}
    forward_only: bool = False


class OptimStepRequest(_Request, frozen=True, kw_only=True):
    """Takes one optimizer step.

    Raises:
        ValidationError: not exactly one of `adam_params` and `optimizer_params` is given.
    """

    model_id: ModelID
    seq_id: Count | None = None
    type: Literal["optim_step"] = sent("optim_step")
    adam_params: AdamParams | None = None
    optimizer_params: TaggedOptimParams | None = None

    def __post_init__(self) -> None:
        if (self.adam_params is None) == (self.optimizer_params is None):
            raise ValidationError("Exactly one of adam_params and optimizer_params must be given.")

    @property
    def params(self) -> OptimParams:
        """The step's parameters, whichever optimizer they are for."""
        params = self.adam_params or self.optimizer_params
        assert params is not None
        return params


class SaveWeightsRequest(_Request, frozen=True, kw_only=True):
    """Saves training state under a name."""

    model_id: ModelID
    path: str | None = None
    seq_id: Count | None = None
    ttl_seconds: Count | None = None
    overwrite: bool = sent(False)
    user_metadata: dict[str, str] | None = None
    type: Literal["save_weights"] = sent("save_weights")


class SaveWeightsForSamplerRequest(_Request, frozen=True, kw_only=True):
    """Saves weights for sampling: under a name, or for one sampling session."""

    model_id: ModelID
    path: str | None = None
    sampling_session_seq_id: Count | None = None
    seq_id: Count | None = None
    ttl_seconds: Count | None = None
    user_metadata: dict[str, str] | None = None
    type: Literal["save_weights_for_sampler"] = sent("save_weights_for_sampler")


class SaveWeightsExternalRequest(_Request, frozen=True, kw_only=True):
    """Exports weights as files to download, encrypted for the recipients if there are any."""

    model_id: ModelID
    path: str
    seq_id: Count | None = None
    ttl_seconds: Count | None = None
    age_encryption_recipients: list[str] | None = None
    type: Literal["save_weights_external"] = sent("save_weights_external")


class LoadWeightsRequest(_Request, frozen=True, kw_only=True):
    """Loads saved weights onto a model (`model_id`, `seq_id`) or into a new one (`session_id`)."""

    model_id: ModelID | None = None
    seq_id: Count | None = None
    session_id: str | None = None
    model_seq_id: Count | None = None
    base_model: str | None = None
    user_metadata: dict[str, Any] | None = None
    path: str
    optimizer: bool
    optimizer_config: OptimizerConfig | None = None
    weights_access_token: str | None = None
    type: Literal["load_weights"] = sent("load_weights")


class CreateCustomLossRequest(_Request, frozen=True, kw_only=True):
    """Uploads a traced loss function."""

    session_id: str
    custom_loss_seq_id: Count
    name: str
    inputs: list[CustomLossInput]
    graph: CustomLossGraph
    type: Literal["create_custom_loss"] = sent("create_custom_loss")


class CreateSamplingSessionRequest(_Request, frozen=True, kw_only=True):
    """Makes a sampler of a base model or of saved weights."""

    session_id: str
    sampling_session_seq_id: Count
    base_model: str | None = None
    model_path: str | None = None
    type: Literal["create_sampling_session"] = sent("create_sampling_session")


CLONE_STRIDE = 1_000_000_000
"""Client n of a sampling session numbers its requests from n times this."""


class JoinSamplingSessionRequest(_Request, frozen=True, kw_only=True):
    """Requests this clone's number among a sampler's clients."""

    sampling_session_id: str
    type: Literal["join_sampling_session"] = sent("join_sampling_session")


class SampleRequest(_Request, frozen=True, kw_only=True):
    """Samples continuations of a prompt. `stream` has the server keep its tokens as they are made,
    for `stream_sample`."""

    beyond_protocol: ClassVar[frozenset[str]] = frozenset({"stream"})

    num_samples: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] = sent(1)
    prompt: ModelInput
    sampling_params: SamplingParams
    base_model: str | None = None
    model_path: str | None = None
    sampling_session_id: str | None = None
    seq_id: Count | None = None
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: Count = sent(0)
    topk_sample_logprobs: Count = sent(0)
    target_prompt_logprobs: TensorData | None = None
    prompt_alt_tokens_k: Count = sent(0)
    prompt_logprobs_last_n: Count | None = None
    record_stability_info: bool | None = None
    stream: bool = False
    type: Literal["sample"] = sent("sample")


class FutureRetrieveRequest(_Request, frozen=True, kw_only=True):
    """Waits for one result."""

    request_id: RequestID
    allow_metadata_only: bool = sent(False)


class SamplingSessionFuturesTarget(_Request, frozen=True, kw_only=True):
    """The requests of one sampling client."""

    type: Literal["sampling_session"] = sent("sampling_session")
    sampling_session_id: str
    cloned_sampler_id: Count = sent(0)


class FuturesRetrieveRequest(_Request, frozen=True, kw_only=True):
    """Waits for any result of a sampling client."""

    target: SamplingSessionFuturesTarget
    prev_cursor: Count = sent(0)
    timeout: float | None = None
    retrieved_request_ids: list[str] = msgspec.field(default_factory=lambda: [])
    known_queue_state: str | None = None
    """The last state that the client received; a Tinkex server then reports when it changes."""


class CancelFutureRequest(_Request, frozen=True, kw_only=True):
    """Notifies the server that no client waits for a result any more."""

    request_id: RequestID


class CancelRequest(_Request, frozen=True, kw_only=True):
    """Cancels one request, the waiting operations of a run, or all samples of the caller."""

    request_id: RequestID | None = None
    run_id: str | None = None
    samples: bool = False


class WeightsInfoRequest(_Request, frozen=True, kw_only=True):
    """Requests what saved weights were trained with."""

    tinker_path: str


class CopyWeightsRequest(_Request, frozen=True, kw_only=True):
    """Copies saved weights, possibly another account's, into one of the caller's projects."""

    session_id: str | None = None
    model_seq_id: Count | None = None
    destination_project_id: str | None = None
    source_path: str
    ttl_seconds: Count | None = None
    weights_access_token: str | None = None


class CreateKeyRequest(ProtocolModel, frozen=True, kw_only=True):
    """Makes another key of the caller's owner. No part of the official protocol."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=128)] = "key"


class SetTTLRequest(ProtocolModel, frozen=True, kw_only=True):
    """Sets when a checkpoint expires; null means never."""

    ttl_seconds: Count | None
