"""Names of the official package that have no counterpart of their own here.

They can be imported and used as their documentation says, as far as it has a meaning here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from tinkex.client.futures import Future
from tinkex.errors import ExperimentalWarning, PromiseLostError
from tinkex.types.sampling import TopkLogprobs
from tinkex.types.training import SavedForSampler, SaveWeightsExternalResponse
from tinkex.version import PROTOCOL_VERSION

__all__ = [
    "AwaitableConcurrentFuture",
    "ExperimentalWarning",
    "RequestOptions",
    "RetryableException",
    "SaveWeightsExternalResponseInternal",
    "SaveWeightsForSamplerResponseInternal",
    "Timeout",
    "TopkLogprobs",
    "__title__",
    "__version__",
]

__title__ = "tinker"
__version__ = PROTOCOL_VERSION  # scripts compare it with the version they need

AwaitableConcurrentFuture = Future
RetryableException = PromiseLostError
SaveWeightsExternalResponseInternal = SaveWeightsExternalResponse
SaveWeightsForSamplerResponseInternal = SavedForSampler


@dataclass(frozen=True, slots=True)
class Timeout:
    """Seconds that parts of a request may take. No method takes it: see `Config(timeout_s=...)`."""

    timeout: float | None = None
    connect: float | None = None
    read: float | None = None
    write: float | None = None
    pool: float | None = None


class RequestOptions(TypedDict, total=False):
    """Settings of one request. No method takes them: see `Config`."""

    headers: Mapping[str, str]
    max_retries: int
    timeout: float | Timeout | None
    params: Mapping[str, object]
    extra_json: Mapping[str, Any]
    idempotency_key: str
