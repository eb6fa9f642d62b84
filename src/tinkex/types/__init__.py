"""The protocol's values.

Every name is importable from here and loaded when first used, so that `import tinkex.types` costs
nothing. The table below is the only list of the names: `tools/type_stub.py` makes the stub for type
checkers from it. Knows no bytes: those are `tinkex.wire`'s.
"""

from __future__ import annotations

from importlib import import_module

_MODULES: dict[str, str] = {
    "billing": """
        AuditLogEntry AuditLogResponse BillingEventInfo BillingUsageEvent BillingUsageResponse
        BillingUsageSession CheckpointBillingEvent CurrentCheckpointStorageUsageItem
        CurrentCheckpointStorageUsageResponse SamplingPrefillBillingEvent
        SamplingSampleBillingEvent StorageBillingEvent TrainingBillingEvent
    """,
    "checkpoint": """
        Checkpoint CheckpointType CheckpointsListResponse CopyWeightsResponse Cursor
        ExternalWeightsUrlsResponse MergedModelResponse ParsedCheckpointTinkerPath TrainingRun
        TrainingRunsResponse TrainingRunUsage
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
        OptimizerConfig OtherOptimizerConfig SgdOptimizerConfig SgdParams
    """,
    "requests": """
        AssignProjectRequest AuthTokenRequest CancelFutureRequest CancelRequest ClientConfigRequest
        CopyWeightsRequest CreateCustomLossRequest CreateModelRequest
        CreateSamplingSessionRequest CreateSessionRequest FinishSessionRequest
        ForwardBackwardRequest FutureRetrieveRequest FuturesRetrieveRequest GetInfoRequest
        JoinSamplingSessionRequest LoadWeightsRequest LogMetricsRequest OptimStepRequest
        SampleRequest
        SamplingSessionFuturesTarget SaveWeightsExternalRequest SaveWeightsForSamplerRequest
        SaveWeightsRequest SessionHeartbeatRequest SetTTLRequest UnloadModelRequest
        UpdateRunRequest WeightsInfoRequest
    """,
    "runs": """
        LogMetricsResponse RunMetricsResponse TrainingRunStatus UsageItem UsageResponse
    """,
    "sample_stream": """
        SampleDelta SampleStreamEnd SampleStreamQueue StreamSampleRequest
    """,
    "sampling": """
        PromptAltTokens SampleResponse SampledSequence SamplingParams StopReason TopkLogprobs
    """,
    "search": """
        AccessibleSearchOwner ActiveSessionStatusQuery CancelledSessionStatusQuery
        ClientFinishedSessionStatusQuery FailedSessionStatusQuery OwnSearchOwner SearchOwner
        SessionSearchRequest SessionStatusQuery UserSearchOwner
    """,
    "server_status": """
        DiskStatus EngineStatus MemoryStatus OwnQueueStatus QueueStatus SamplingQueueStatus
        ServerStatus TokenRates TrainingQueueStatus WorkerStatus
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

__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]  # it reads the stub


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
