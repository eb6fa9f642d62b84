"""What a Tinkex server does now, as `RestClient.get_server_status` gives it."""

from __future__ import annotations

from tinkex.types._model import AnswerModel


class EngineStatus(AnswerModel, frozen=True, kw_only=True):
    """All engines together: the mean of their busy shares, and what most of the busy ones do."""

    busy_share: float
    doing: str
    num_workers: int
    num_adapters: int
    num_samplers: int


class WorkerStatus(AnswerModel, frozen=True, kw_only=True):
    """One engine's process."""

    name: str
    state: str
    roles: list[str]
    doing: str
    busy_share: float
    num_models: int
    num_adapters: int
    num_samples: int


class TrainingQueueStatus(AnswerModel, frozen=True, kw_only=True):
    """Operations of all tenants: those that wait, and how many run."""

    operations: int
    models: int
    tokens: int
    running_operations: int
    oldest_s: float


class SamplingQueueStatus(AnswerModel, frozen=True, kw_only=True):
    """Requests for samples of all tenants: those that wait, and how many run."""

    requests: int
    tokens: int
    running_requests: int
    running_sequences: int
    oldest_s: float


class OwnQueueStatus(AnswerModel, frozen=True, kw_only=True):
    """The caller's own work: operations and requests for samples that wait, requests that run."""

    operations: int
    requests: int
    running_requests: int


class QueueStatus(AnswerModel, frozen=True, kw_only=True):
    """Unfinished work, of all tenants and of the caller."""

    training: TrainingQueueStatus
    sampling: SamplingQueueStatus
    yours: OwnQueueStatus


class TokenRates(AnswerModel, frozen=True, kw_only=True):
    """Tokens per second of the last seconds, by use."""

    trained: int
    sampled: int
    scored: int


class MemoryStatus(AnswerModel, frozen=True, kw_only=True):
    """Memory of the server, its engines and the machine; None where the system does not say."""

    server_bytes: int | None = None
    engine_bytes: int | None = None
    machine_bytes: int | None = None


class DiskStatus(AnswerModel, frozen=True, kw_only=True):
    """The disk of the data folder, and the caller's part of it; without a quota that is None."""

    free_bytes: int
    total_bytes: int
    used_by_you_bytes: int
    quota_bytes: int | None = None


class ServerStatus(AnswerModel, frozen=True, kw_only=True):
    """Engine, queue, tokens per second, memory and disk."""

    version: str
    uptime_s: float
    state: str
    models: list[str]
    engine: EngineStatus
    workers: list[WorkerStatus]
    queue: QueueStatus
    tokens_per_s: TokenRates
    memory: MemoryStatus
    disk: DiskStatus
