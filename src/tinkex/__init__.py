"""Tinkex: LoRA training as a service, in a plain loop.

```python
import tinkex

with tinkex.ServiceClient() as service:
    training = service.create_lora_training_client(base_model="smollm2-135m")
```

Importing the package loads nothing heavy: each public name is fetched when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tinkex.version import __version__

if TYPE_CHECKING:
    from tinkex import auth, compat, errors, telemetry, types
    from tinkex.client.admin import AdminClient
    from tinkex.client.clock import Clock
    from tinkex.client.futures import (
        APIFuture,
        Future,
        Outcome,
        as_completed,
        await_many,
        await_many_async,
        stream,
        stream_async,
    )
    from tinkex.client.loss_handle import LossHandle
    from tinkex.client.loss_trace import PerDatumLossFn
    from tinkex.client.recovery import RecoveryMonitor, WatchedRun
    from tinkex.client.recovery_policy import Recovered, RecoveryPolicy
    from tinkex.client.rest import RestClient
    from tinkex.client.retry import RetryConfig, RetryPolicy
    from tinkex.client.runtime import Runtime, default_runtime
    from tinkex.client.sample_stream import SampleStream
    from tinkex.client.sampling import SamplingClient
    from tinkex.client.service import ServiceClient
    from tinkex.client.text_stream import TextStream
    from tinkex.client.training import TrainingClient
    from tinkex.compat.names import RequestOptions, Timeout
    from tinkex.config import Config
    from tinkex.errors import (
        APIConnectionError,
        APIError,
        APIResponseValidationError,
        APIStatusError,
        APITimeoutError,
        AuthenticationError,
        BadRequestError,
        BillingError,
        ConflictError,
        ExperimentalWarning,
        InternalServerError,
        NotFoundError,
        PermissionDeniedError,
        RateLimitError,
        RecoveryFailedError,
        RequestFailedError,
        TinkerError,
        TinkexError,
        UnprocessableEntityError,
        ValidationError,
    )
    from tinkex.tokenizers.tokenizer import load_tokenizer
    from tinkex.types import (
        AdamOptimizerConfig,
        AdamParams,
        Checkpoint,
        CheckpointType,
        Datum,
        DimuonOptimizerConfig,
        DimuonParams,
        DmelChunk,
        EncodedTextChunk,
        ForwardBackwardOutput,
        ImageAssetPointerChunk,
        ImageChunk,
        LoraConfig,
        ModelID,
        ModelInput,
        ModelInputChunk,
        OptimParams,
        OptimStepRequest,
        OptimStepResponse,
        ParsedCheckpointTinkerPath,
        PromptProvenanceSpan,
        SampledProvenanceSpan,
        SampledSequence,
        SampleRequest,
        SampleResponse,
        SamplingParams,
        StopReason,
        TensorData,
        TensorDtype,
        TrainingRun,
    )

_ERRORS = (
    "APIConnectionError",
    "APIError",
    "APIResponseValidationError",
    "APIStatusError",
    "APITimeoutError",
    "AuthenticationError",
    "BadRequestError",
    "BillingError",
    "ConflictError",
    "ExperimentalWarning",
    "InternalServerError",
    "NotFoundError",
    "PermissionDeniedError",
    "RateLimitError",
    "RecoveryFailedError",
    "RequestFailedError",
    "TinkerError",
    "TinkexError",
    "UnprocessableEntityError",
    "ValidationError",
)
_TYPES = (
    "AdamOptimizerConfig",
    "AdamParams",
    "Checkpoint",
    "CheckpointType",
    "Datum",
    "DimuonOptimizerConfig",
    "DimuonParams",
    "DmelChunk",
    "EncodedTextChunk",
    "ForwardBackwardOutput",
    "ImageAssetPointerChunk",
    "ImageChunk",
    "LoraConfig",
    "ModelID",
    "ModelInput",
    "ModelInputChunk",
    "OptimParams",
    "OptimStepRequest",
    "OptimStepResponse",
    "ParsedCheckpointTinkerPath",
    "PromptProvenanceSpan",
    "SampleRequest",
    "SampleResponse",
    "SampledProvenanceSpan",
    "SampledSequence",
    "SamplingParams",
    "StopReason",
    "TensorData",
    "TensorDtype",
    "TrainingRun",
)
_HOMES = {
    "APIFuture": "tinkex.client.futures",
    "AdminClient": "tinkex.client.admin",
    "Clock": "tinkex.client.clock",
    "Config": "tinkex.config",
    "Future": "tinkex.client.futures",
    "LossHandle": "tinkex.client.loss_handle",
    "Outcome": "tinkex.client.futures",
    "PerDatumLossFn": "tinkex.client.loss_trace",
    "Recovered": "tinkex.client.recovery_policy",
    "RecoveryMonitor": "tinkex.client.recovery",
    "RecoveryPolicy": "tinkex.client.recovery_policy",
    "RequestOptions": "tinkex.compat.names",
    "RestClient": "tinkex.client.rest",
    "RetryConfig": "tinkex.client.retry",
    "RetryPolicy": "tinkex.client.retry",
    "Runtime": "tinkex.client.runtime",
    "SampleStream": "tinkex.client.sample_stream",
    "SamplingClient": "tinkex.client.sampling",
    "ServiceClient": "tinkex.client.service",
    "TextStream": "tinkex.client.text_stream",
    "Timeout": "tinkex.compat.names",
    "TrainingClient": "tinkex.client.training",
    "WatchedRun": "tinkex.client.recovery",
    "as_completed": "tinkex.client.futures",
    "await_many": "tinkex.client.futures",
    "await_many_async": "tinkex.client.futures",
    "default_runtime": "tinkex.client.runtime",
    "load_tokenizer": "tinkex.tokenizers.tokenizer",
    "stream": "tinkex.client.futures",
    "stream_async": "tinkex.client.futures",
    **dict.fromkeys(_ERRORS, "tinkex.errors"),
    **dict.fromkeys(_TYPES, "tinkex.types"),
}
_MODULES = ("auth", "compat", "errors", "telemetry", "types")

__title__ = "tinkex"


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"tinkex.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'tinkex' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "APIConnectionError",
    "APIError",
    "APIFuture",
    "APIResponseValidationError",
    "APIStatusError",
    "APITimeoutError",
    "AdamOptimizerConfig",
    "AdamParams",
    "AdminClient",
    "AuthenticationError",
    "BadRequestError",
    "BillingError",
    "Checkpoint",
    "CheckpointType",
    "Clock",
    "Config",
    "ConflictError",
    "Datum",
    "DimuonOptimizerConfig",
    "DimuonParams",
    "DmelChunk",
    "EncodedTextChunk",
    "ExperimentalWarning",
    "ForwardBackwardOutput",
    "Future",
    "ImageAssetPointerChunk",
    "ImageChunk",
    "InternalServerError",
    "LoraConfig",
    "LossHandle",
    "ModelID",
    "ModelInput",
    "ModelInputChunk",
    "NotFoundError",
    "OptimParams",
    "OptimStepRequest",
    "OptimStepResponse",
    "Outcome",
    "ParsedCheckpointTinkerPath",
    "PerDatumLossFn",
    "PermissionDeniedError",
    "PromptProvenanceSpan",
    "RateLimitError",
    "Recovered",
    "RecoveryFailedError",
    "RecoveryMonitor",
    "RecoveryPolicy",
    "RequestFailedError",
    "RequestOptions",
    "RestClient",
    "RetryConfig",
    "RetryPolicy",
    "Runtime",
    "SampleRequest",
    "SampleResponse",
    "SampleStream",
    "SampledProvenanceSpan",
    "SampledSequence",
    "SamplingClient",
    "SamplingParams",
    "ServiceClient",
    "StopReason",
    "TensorData",
    "TensorDtype",
    "TextStream",
    "Timeout",
    "TinkerError",
    "TinkexError",
    "TrainingClient",
    "TrainingRun",
    "UnprocessableEntityError",
    "ValidationError",
    "WatchedRun",
    "__title__",
    "__version__",
    "as_completed",
    "auth",
    "await_many",
    "await_many_async",
    "compat",
    "default_runtime",
    "errors",
    "load_tokenizer",
    "stream",
    "stream_async",
    "telemetry",
    "types",
]
