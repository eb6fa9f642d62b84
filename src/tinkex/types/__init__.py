"""The protocol's values.

Every name is importable from here and loaded when first used, so that `import tinkex.types` costs
nothing. Knows no bytes: those are `tinkex.wire`'s.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tinkex.types.billing import (
        AuditLogEntry,
        AuditLogResponse,
        BillingEventInfo,
        BillingUsageEvent,
        BillingUsageResponse,
        BillingUsageSession,
        CheckpointBillingEvent,
        CurrentCheckpointStorageUsageItem,
        CurrentCheckpointStorageUsageResponse,
        SamplingPrefillBillingEvent,
        SamplingSampleBillingEvent,
        StorageBillingEvent,
        TrainingBillingEvent,
    )
    from tinkex.types.checkpoint import (
        Checkpoint,
        CheckpointsListResponse,
        CheckpointType,
        CopyWeightsResponse,
        Cursor,
        ExternalWeightsUrlsResponse,
        ParsedCheckpointTinkerPath,
        TrainingRun,
        TrainingRunsResponse,
    )
    from tinkex.types.custom_loss import (
        CustomLossGraph,
        CustomLossInput,
        CustomLossInputRank,
        CustomLossNode,
    )
    from tinkex.types.datum import (
        Datum,
        LossFnInputs,
        PromptProvenanceSpan,
        ProvenanceSpans,
        SampledProvenanceSpan,
    )
    from tinkex.types.model_input import (
        DmelChunk,
        EncodedTextChunk,
        ImageAssetPointerChunk,
        ImageChunk,
        ImageFormat,
        ModelInput,
        ModelInputChunk,
        Tokenizer,
    )
    from tinkex.types.optimizers import (
        AdamOptimizerConfig,
        AdamParams,
        DimuonOptimizerConfig,
        DimuonParams,
        OptimizerConfig,
        OptimParams,
        SgdOptimizerConfig,
        SgdParams,
    )
    from tinkex.types.requests import (
        AssignProjectRequest,
        AuthTokenRequest,
        CancelFutureRequest,
        ClientConfigRequest,
        CopyWeightsRequest,
        CreateCustomLossRequest,
        CreateModelRequest,
        CreateSamplingSessionRequest,
        CreateSessionRequest,
        FinishSessionRequest,
        ForwardBackwardRequest,
        FutureRetrieveRequest,
        FuturesRetrieveRequest,
        GetInfoRequest,
        JoinSamplingSessionRequest,
        LoadWeightsRequest,
        OptimStepRequest,
        SampleRequest,
        SamplingSessionFuturesTarget,
        SaveWeightsExternalRequest,
        SaveWeightsForSamplerRequest,
        SaveWeightsRequest,
        SessionHeartbeatRequest,
        SetTTLRequest,
        UnloadModelRequest,
        WeightsInfoRequest,
    )
    from tinkex.types.sampling import (
        PromptAltTokens,
        SampledSequence,
        SampleResponse,
        SamplingParams,
        StopReason,
        TopkLogprobs,
    )
    from tinkex.types.search import (
        AccessibleSearchOwner,
        ActiveSessionStatusQuery,
        CancelledSessionStatusQuery,
        ClientFinishedSessionStatusQuery,
        FailedSessionStatusQuery,
        OwnSearchOwner,
        SearchOwner,
        SessionSearchRequest,
        SessionStatusQuery,
        UserSearchOwner,
    )
    from tinkex.types.session import (
        ApiKeyDetails,
        ApiKeyInfo,
        AuthTokenResponse,
        ClientConfig,
        ClientConfigResponse,
        ClientDynamicConfig,
        ClientDynamicConfigResponse,
        ClientSessionFinished,
        ClientSessionFinishErrored,
        ClientSessionFinishInterrupted,
        ClientSessionFinishReason,
        ClientSessionFinishReasonType,
        ClientSessionFinishSuccess,
        CompleteMetadataResponse,
        CreateSamplingSessionResponse,
        CreateSessionResponse,
        FutureCompletion,
        FutureFailed,
        FutureFinished,
        FuturesRetrieveResponse,
        GetSamplerResponse,
        GetServerCapabilitiesResponse,
        GetSessionResponse,
        HealthResponse,
        JoinSamplingSessionResponse,
        ListSessionsResponse,
        OrgDetails,
        QueueState,
        RequestErrorCategory,
        RequestFailedResponse,
        SessionActive,
        SessionCancelled,
        SessionFailed,
        SessionFailedReason,
        SessionFailedRequestReason,
        SessionFailedSamplingSessionReason,
        SessionFailedTrainingRunReason,
        SessionHeartbeatResponse,
        SessionSearchCursor,
        SessionSearchResponse,
        SessionStatus,
        SessionSummary,
        SupportedModel,
        TraceExportResponse,
        TryAgainResponse,
        UnloadModelResponse,
        UntypedAPIFuture,
        UntypedPromise,
        UserDetails,
        WhoamiResponse,
    )
    from tinkex.types.telemetry import (
        EventType,
        GenericEvent,
        SessionEndEvent,
        SessionStartEvent,
        Severity,
        TelemetryBatch,
        TelemetryEvent,
        TelemetryResponse,
        TelemetrySendRequest,
        UnhandledExceptionEvent,
    )
    from tinkex.types.tensor import (
        TensorData,
        TensorDtype,
    )
    from tinkex.types.training import (
        CreateCustomLossResponse,
        CreateModelResponse,
        ForwardBackwardOutput,
        GetInfoResponse,
        LoadWeightsResponse,
        LoraConfig,
        LossFnOutput,
        LossFnType,
        ModelData,
        ModelID,
        OptimStepResponse,
        RequestID,
        SaveWeightsExternalResponse,
        SaveWeightsForSamplerResponse,
        SaveWeightsResponse,
        WeightsInfoResponse,
    )

_MODULES: dict[str, str] = {
    "billing": """
        AuditLogEntry AuditLogResponse BillingEventInfo BillingUsageEvent BillingUsageResponse
        BillingUsageSession CheckpointBillingEvent CurrentCheckpointStorageUsageItem
        CurrentCheckpointStorageUsageResponse SamplingPrefillBillingEvent
        SamplingSampleBillingEvent StorageBillingEvent TrainingBillingEvent
    """,
    "checkpoint": """
        Checkpoint CheckpointType CheckpointsListResponse CopyWeightsResponse Cursor
        ExternalWeightsUrlsResponse ParsedCheckpointTinkerPath TrainingRun TrainingRunsResponse
    """,
    "custom_loss": """
        CustomLossGraph CustomLossInput CustomLossInputRank CustomLossNode
    """,
    "datum": """
        Datum LossFnInputs PromptProvenanceSpan ProvenanceSpans SampledProvenanceSpan
    """,
    "model_input": """
        DmelChunk EncodedTextChunk ImageAssetPointerChunk ImageChunk ImageFormat ModelInput
        ModelInputChunk Tokenizer
    """,
    "optimizers": """
        AdamOptimizerConfig AdamParams DimuonOptimizerConfig DimuonParams OptimParams
        OptimizerConfig SgdOptimizerConfig SgdParams
    """,
    "requests": """
        AssignProjectRequest AuthTokenRequest CancelFutureRequest ClientConfigRequest
        CopyWeightsRequest CreateCustomLossRequest CreateModelRequest
        CreateSamplingSessionRequest CreateSessionRequest FinishSessionRequest
        ForwardBackwardRequest FutureRetrieveRequest FuturesRetrieveRequest GetInfoRequest
        JoinSamplingSessionRequest LoadWeightsRequest OptimStepRequest SampleRequest
        SamplingSessionFuturesTarget SaveWeightsExternalRequest SaveWeightsForSamplerRequest
        SaveWeightsRequest SessionHeartbeatRequest SetTTLRequest UnloadModelRequest
        WeightsInfoRequest
    """,
    "sampling": """
        PromptAltTokens SampleResponse SampledSequence SamplingParams StopReason TopkLogprobs
    """,
    "search": """
        AccessibleSearchOwner ActiveSessionStatusQuery CancelledSessionStatusQuery
        ClientFinishedSessionStatusQuery FailedSessionStatusQuery OwnSearchOwner SearchOwner
        SessionSearchRequest SessionStatusQuery UserSearchOwner
    """,
    "session": """
        ApiKeyDetails ApiKeyInfo AuthTokenResponse ClientConfig ClientConfigResponse
        ClientDynamicConfig ClientDynamicConfigResponse ClientSessionFinishErrored
        ClientSessionFinishInterrupted ClientSessionFinishReason ClientSessionFinishReasonType
        ClientSessionFinishSuccess ClientSessionFinished CompleteMetadataResponse
        CreateSamplingSessionResponse CreateSessionResponse FutureCompletion FutureFailed
        FutureFinished FuturesRetrieveResponse GetSamplerResponse GetServerCapabilitiesResponse
        GetSessionResponse HealthResponse JoinSamplingSessionResponse ListSessionsResponse
        OrgDetails QueueState RequestErrorCategory RequestFailedResponse SessionActive
        SessionCancelled SessionFailed SessionFailedReason SessionFailedRequestReason
        SessionFailedSamplingSessionReason SessionFailedTrainingRunReason
        SessionHeartbeatResponse SessionSearchCursor SessionSearchResponse SessionStatus
        SessionSummary SupportedModel TraceExportResponse TryAgainResponse UnloadModelResponse
        UntypedAPIFuture UntypedPromise UserDetails WhoamiResponse
    """,
    "telemetry": """
        EventType GenericEvent SessionEndEvent SessionStartEvent Severity TelemetryBatch
        TelemetryEvent TelemetryResponse TelemetrySendRequest UnhandledExceptionEvent
    """,
    "tensor": """
        TensorData TensorDtype
    """,
    "training": """
        CreateCustomLossResponse CreateModelResponse ForwardBackwardOutput GetInfoResponse
        LoadWeightsResponse LoraConfig LossFnOutput LossFnType ModelData ModelID OptimStepResponse
        RequestID SaveWeightsExternalResponse SaveWeightsForSamplerResponse SaveWeightsResponse
        WeightsInfoResponse
    """,
}
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "AccessibleSearchOwner",
    "ActiveSessionStatusQuery",
    "AdamOptimizerConfig",
    "AdamParams",
    "ApiKeyDetails",
    "ApiKeyInfo",
    "AssignProjectRequest",
    "AuditLogEntry",
    "AuditLogResponse",
    "AuthTokenRequest",
    "AuthTokenResponse",
    "BillingEventInfo",
    "BillingUsageEvent",
    "BillingUsageResponse",
    "BillingUsageSession",
    "CancelFutureRequest",
    "CancelledSessionStatusQuery",
    "Checkpoint",
    "CheckpointBillingEvent",
    "CheckpointType",
    "CheckpointsListResponse",
    "ClientConfig",
    "ClientConfigRequest",
    "ClientConfigResponse",
    "ClientDynamicConfig",
    "ClientDynamicConfigResponse",
    "ClientFinishedSessionStatusQuery",
    "ClientSessionFinishErrored",
    "ClientSessionFinishInterrupted",
    "ClientSessionFinishReason",
    "ClientSessionFinishReasonType",
    "ClientSessionFinishSuccess",
    "ClientSessionFinished",
    "CompleteMetadataResponse",
    "CopyWeightsRequest",
    "CopyWeightsResponse",
    "CreateCustomLossRequest",
    "CreateCustomLossResponse",
    "CreateModelRequest",
    "CreateModelResponse",
    "CreateSamplingSessionRequest",
    "CreateSamplingSessionResponse",
    "CreateSessionRequest",
    "CreateSessionResponse",
    "CurrentCheckpointStorageUsageItem",
    "CurrentCheckpointStorageUsageResponse",
    "Cursor",
    "CustomLossGraph",
    "CustomLossInput",
    "CustomLossInputRank",
    "CustomLossNode",
    "Datum",
    "DimuonOptimizerConfig",
    "DimuonParams",
    "DmelChunk",
    "EncodedTextChunk",
    "EventType",
    "ExternalWeightsUrlsResponse",
    "FailedSessionStatusQuery",
    "FinishSessionRequest",
    "ForwardBackwardOutput",
    "ForwardBackwardRequest",
    "FutureCompletion",
    "FutureFailed",
    "FutureFinished",
    "FutureRetrieveRequest",
    "FuturesRetrieveRequest",
    "FuturesRetrieveResponse",
    "GenericEvent",
    "GetInfoRequest",
    "GetInfoResponse",
    "GetSamplerResponse",
    "GetServerCapabilitiesResponse",
    "GetSessionResponse",
    "HealthResponse",
    "ImageAssetPointerChunk",
    "ImageChunk",
    "ImageFormat",
    "JoinSamplingSessionRequest",
    "JoinSamplingSessionResponse",
    "ListSessionsResponse",
    "LoadWeightsRequest",
    "LoadWeightsResponse",
    "LoraConfig",
    "LossFnInputs",
    "LossFnOutput",
    "LossFnType",
    "ModelData",
    "ModelID",
    "ModelInput",
    "ModelInputChunk",
    "OptimParams",
    "OptimStepRequest",
    "OptimStepResponse",
    "OptimizerConfig",
    "OrgDetails",
    "OwnSearchOwner",
    "ParsedCheckpointTinkerPath",
    "PromptAltTokens",
    "PromptProvenanceSpan",
    "ProvenanceSpans",
    "QueueState",
    "RequestErrorCategory",
    "RequestFailedResponse",
    "RequestID",
    "SampleRequest",
    "SampleResponse",
    "SampledProvenanceSpan",
    "SampledSequence",
    "SamplingParams",
    "SamplingPrefillBillingEvent",
    "SamplingSampleBillingEvent",
    "SamplingSessionFuturesTarget",
    "SaveWeightsExternalRequest",
    "SaveWeightsExternalResponse",
    "SaveWeightsForSamplerRequest",
    "SaveWeightsForSamplerResponse",
    "SaveWeightsRequest",
    "SaveWeightsResponse",
    "SearchOwner",
    "SessionActive",
    "SessionCancelled",
    "SessionEndEvent",
    "SessionFailed",
    "SessionFailedReason",
    "SessionFailedRequestReason",
    "SessionFailedSamplingSessionReason",
    "SessionFailedTrainingRunReason",
    "SessionHeartbeatRequest",
    "SessionHeartbeatResponse",
    "SessionSearchCursor",
    "SessionSearchRequest",
    "SessionSearchResponse",
    "SessionStartEvent",
    "SessionStatus",
    "SessionStatusQuery",
    "SessionSummary",
    "SetTTLRequest",
    "Severity",
    "SgdOptimizerConfig",
    "SgdParams",
    "StopReason",
    "StorageBillingEvent",
    "SupportedModel",
    "TelemetryBatch",
    "TelemetryEvent",
    "TelemetryResponse",
    "TelemetrySendRequest",
    "TensorData",
    "TensorDtype",
    "Tokenizer",
    "TopkLogprobs",
    "TraceExportResponse",
    "TrainingBillingEvent",
    "TrainingRun",
    "TrainingRunsResponse",
    "TryAgainResponse",
    "UnhandledExceptionEvent",
    "UnloadModelRequest",
    "UnloadModelResponse",
    "UntypedAPIFuture",
    "UntypedPromise",
    "UserDetails",
    "UserSearchOwner",
    "WeightsInfoRequest",
    "WeightsInfoResponse",
    "WhoamiResponse",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
