"""Responses about the server, its sessions and its futures.

Answers only: request bodies are in `requests`. Unknown fields of newer servers are ignored.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Literal

from tinkex.types._model import AnswerModel
from tinkex.types.training import ModelID, RequestID

ClientSessionFinishReasonType = Literal["success", "errored", "interrupted"]
QueueState = Literal["active", "paused_capacity", "paused_rate_limit"]


class HealthResponse(AnswerModel, frozen=True, kw_only=True):
    """The server is up."""

    status: Literal["ok"] = "ok"


class ClientConfig(AnswerModel, frozen=True, kw_only=True):
    """The server's settings for clients; an empty response means all the defaults."""

    beyond_protocol: ClassVar[frozenset[str]] = frozenset({"extensions"})

    pjwt_auth_enabled: bool = False
    credential_default_source: str = "api_key"
    sample_dispatch_bytes_semaphore_size: int = 10_485_760
    inflight_response_bytes_semaphore_size: int = 52_428_800
    parallel_fwdbwd_chunks: bool = True
    proto_compress_fwdbwd: bool = False
    fwdbwd_max_chunk_len: int = 1024
    fwdbwd_max_chunk_bytes_count: int = 5_000_000
    fwdbwd_dispatch_bytes_semaphore_size: int = 50_000_000
    billing_exception_max_pause_duration_sec: int = 3600
    sample_no_retries: bool = False
    sample_enable_stuck_detection: bool = True
    sample_max_concurrent_requests: int = 2000
    use_pyqwest_transport: bool = True
    create_model_via_load_weights: bool = False
    sample_use_retrieve_futures: bool = False
    custom_loss_server_side: bool = False
    sample_join_sampling_session: bool = False
    extensions: list[str] = []
    """Names of what the server has beyond the protocol: `lora.alpha`, `optimizer.sgd`,
    `sampling.min_p` and so on; only Tinkex servers send it."""


class ClientDynamicConfig(AnswerModel, frozen=True, kw_only=True):
    """The part of the configuration that may change while a client runs."""

    refresh_interval_sec: int = 300
    sample_cancel_enabled: bool = False
    sample_cancel_max_batch_size: int = 64


ClientConfigResponse = ClientConfig
ClientDynamicConfigResponse = ClientDynamicConfig


class AuthTokenResponse(AnswerModel, frozen=True, kw_only=True):
    """A short-lived token to use in place of the key."""

    jwt: str

    def __repr__(self) -> str:
        return "AuthTokenResponse(jwt=…)"


class OrgDetails(AnswerModel, frozen=True, kw_only=True):
    """The organisation a key belongs to."""

    name: str


class UserDetails(AnswerModel, frozen=True, kw_only=True):
    """The person a key belongs to."""

    email: str


class ApiKeyDetails(AnswerModel, frozen=True, kw_only=True):
    """Whose key it is."""

    org_details: OrgDetails
    user_details: UserDetails


class ApiKeyInfo(AnswerModel, frozen=True, kw_only=True):
    """The key of the request."""

    key_id: int
    name: str
    note: str
    details: ApiKeyDetails


class WhoamiResponse(AnswerModel, frozen=True, kw_only=True):
    """The user and organisation of the credential."""

    user_urn: str
    org_urn: str
    email: str | None = None


class SupportedModel(AnswerModel, frozen=True, kw_only=True):
    """A base model the server offers."""

    model_name: str | None = None
    max_context_length: int | None = None
    trainable: bool | None = None
    sampleable: bool | None = None


class GetServerCapabilitiesResponse(AnswerModel, frozen=True, kw_only=True):
    """The server's models and features.

    `supported_models` has every name by which a model can be requested. `aliases` maps a model's
    other names to its main one, `losses` has the values that `loss_fn` may have,
    `sampling_extensions` the sampling parameters beyond the official ones; only Tinkex servers
    send these three.
    """

    beyond_protocol: ClassVar[frozenset[str]] = frozenset(
        {"aliases", "losses", "sampling_extensions"}
    )

    supported_models: list[SupportedModel]
    aliases: dict[str, str] = {}
    losses: list[str] = []
    sampling_extensions: list[str] = []


class CreateSessionResponse(AnswerModel, frozen=True, kw_only=True):
    """A session exists; the messages, if any, are for the user."""

    type: Literal["create_session"] = "create_session"
    session_id: str
    info_message: str | None = None
    warning_message: str | None = None
    error_message: str | None = None


class SessionHeartbeatResponse(AnswerModel, frozen=True, kw_only=True):
    """The session is alive."""

    type: Literal["session_heartbeat"] = "session_heartbeat"


class ListSessionsResponse(AnswerModel, frozen=True, kw_only=True):
    """Session ids, newest first."""

    sessions: list[str]


class GetSessionResponse(AnswerModel, frozen=True, kw_only=True):
    """The models and samplers of one session."""

    training_run_ids: list[str]
    sampler_ids: list[str]
    user_metadata: dict[str, Any] | None = None
    display_name: str | None = None


class TraceExportResponse(AnswerModel, frozen=True, kw_only=True):
    """The progress of exporting a session's trace."""

    status: Literal["pending", "ready", "failed"]
    url: str | None = None
    error: str | None = None


class ClientSessionFinishSuccess(AnswerModel, frozen=True, tag_field="type", tag="success"):
    """The client ended the session, all well."""

    type: ClassVar[Literal["success"]] = "success"


class ClientSessionFinishErrored(AnswerModel, frozen=True, tag_field="type", tag="errored"):
    """The client ended the session because of an error."""

    type: ClassVar[Literal["errored"]] = "errored"


class ClientSessionFinishInterrupted(AnswerModel, frozen=True, tag_field="type", tag="interrupted"):
    """The client was interrupted."""

    type: ClassVar[Literal["interrupted"]] = "interrupted"


ClientSessionFinishReason = (
    ClientSessionFinishSuccess | ClientSessionFinishErrored | ClientSessionFinishInterrupted
)


class SessionFailedRequestReason(
    AnswerModel, frozen=True, kw_only=True, tag_field="type", tag="request"
):
    """A request failed and took the session with it."""

    type: ClassVar[Literal["request"]] = "request"
    request_id: str
    request_type: str


class SessionFailedTrainingRunReason(
    AnswerModel, frozen=True, kw_only=True, tag_field="type", tag="training_run"
):
    """A training run failed and took the session with it."""

    type: ClassVar[Literal["training_run"]] = "training_run"
    training_run_id: str


class SessionFailedSamplingSessionReason(
    AnswerModel, frozen=True, kw_only=True, tag_field="type", tag="sampling_session"
):
    """A sampler failed and took the session with it."""

    type: ClassVar[Literal["sampling_session"]] = "sampling_session"
    sampling_session_id: str


SessionFailedReason = (
    SessionFailedRequestReason | SessionFailedTrainingRunReason | SessionFailedSamplingSessionReason
)


class SessionActive(AnswerModel, frozen=True, tag_field="type", tag="active"):
    """The session is in use."""

    type: ClassVar[Literal["active"]] = "active"


class SessionCancelled(AnswerModel, frozen=True, kw_only=True, tag_field="type", tag="cancelled"):
    """The server ended the session, for instance because its client fell silent."""

    type: ClassVar[Literal["cancelled"]] = "cancelled"
    detail: str | None = None


class ClientSessionFinished(
    AnswerModel, frozen=True, kw_only=True, tag_field="type", tag="client_finished"
):
    """The client ended the session."""

    type: ClassVar[Literal["client_finished"]] = "client_finished"
    reason: ClientSessionFinishReason
    detail: str | None = None


class SessionFailed(AnswerModel, frozen=True, kw_only=True, tag_field="type", tag="failed"):
    """The session failed."""

    type: ClassVar[Literal["failed"]] = "failed"
    category: Literal["user", "internal"]
    reason: SessionFailedReason
    message: str


SessionStatus = SessionActive | SessionCancelled | ClientSessionFinished | SessionFailed


class SessionSummary(AnswerModel, frozen=True, kw_only=True):
    """One session in a search result."""

    session_id: str
    created_at: datetime
    owner: str
    project_id: str
    status: SessionStatus | None = None
    checkpoints_count: int
    display_name: str | None = None
    user_metadata: dict[str, str] | None = None
    checkpoint_storage_bytes: int | None = None


class SessionSearchCursor(AnswerModel, frozen=True, kw_only=True):
    """The start of the next page of a session search."""

    last_created_at: datetime
    last_session_id: str


class SessionSearchResponse(AnswerModel, frozen=True, kw_only=True):
    """One page of a session search."""

    sessions: list[SessionSummary]
    next_cursor: SessionSearchCursor | None = None


class CreateSamplingSessionResponse(AnswerModel, frozen=True, kw_only=True):
    """A sampler exists."""

    type: Literal["create_sampling_session"] = "create_sampling_session"
    sampling_session_id: str


class JoinSamplingSessionResponse(AnswerModel, frozen=True, kw_only=True):
    """The number of this clone of a sampling client; the original is 0."""

    type: Literal["join_sampling_session"] = "join_sampling_session"
    client_counter: int


class GetSamplerResponse(AnswerModel, frozen=True, kw_only=True):
    """The base model or weights of a sampler."""

    sampler_id: str
    base_model: str
    model_path: str | None = None


class UntypedPromise(AnswerModel, frozen=True, kw_only=True, omit_defaults=True):
    """The server accepted the work; its result is fetched by `request_id`."""

    request_id: RequestID
    model_id: ModelID | None = None
    sample_sequence_ids: list[str] | None = None


UntypedAPIFuture = UntypedPromise


class TryAgainResponse(AnswerModel, frozen=True, kw_only=True):
    """Not ready yet."""

    type: Literal["try_again"] = "try_again"
    request_id: RequestID
    queue_state: str = "active"
    queue_state_reason: str | None = None


class CompleteMetadataResponse(AnswerModel, frozen=True, kw_only=True):
    """Ready, and so large that the client should wait for memory before it fetches it."""

    status: Literal["complete_metadata"] = "complete_metadata"
    response_payload_size: int


class RequestErrorCategory(StrEnum):
    """Who caused a failed request, the user or the server; an unknown value counts as unknown."""

    Unknown = "unknown"
    Server = "server"
    User = "user"

    @classmethod
    def _missing_(cls, value: object) -> RequestErrorCategory:
        return cls.Unknown


class RequestFailedResponse(AnswerModel, frozen=True, kw_only=True):
    """The request was accepted and then failed. The mere presence of `error` says so."""

    error: str | None
    category: RequestErrorCategory = RequestErrorCategory.Unknown


class FutureFinished(
    AnswerModel, frozen=True, kw_only=True, tag_field="state", tag="finished", omit_defaults=True
):
    """A request's result can be fetched."""

    state: ClassVar[Literal["finished"]] = "finished"
    request_id: RequestID
    response_payload_uncompressed_size: int | None = None


class FutureFailed(AnswerModel, frozen=True, kw_only=True, tag_field="state", tag="failed"):
    """A request failed; its result is the error."""

    state: ClassVar[Literal["failed"]] = "failed"
    request_id: RequestID


FutureCompletion = FutureFinished | FutureFailed


class FuturesRetrieveResponse(AnswerModel, frozen=True, kw_only=True, omit_defaults=True):
    """The requests completed since `prev_cursor`."""

    completions: list[FutureCompletion]
    cursor: int
    queue_state: str | None = None
    """Whether the session's other requests have to wait; only for clients that request it."""
    queue_state_reason: str | None = None


class UnloadModelResponse(AnswerModel, frozen=True, kw_only=True):
    """A model left the server's memory."""

    model_id: ModelID
    type: Literal["unload_model"] | None = "unload_model"
