"""Training runs and the checkpoints they leave behind."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Literal, Self

from tinkex.errors import InvalidPathError
from tinkex.types._model import AnswerModel
from tinkex.types.runs import TrainingRunStatus
from tinkex.types.training import LoraConfig

CheckpointType = Literal["training", "sampler", "external"]

PATH_PREFIX = "tinker://"
CHECKPOINT_TYPES: dict[str, CheckpointType] = {
    "weights": "training",
    "sampler_weights": "sampler",
    "external_weights": "external",
}
"""The checkpoint type that each middle part of a path stands for."""


class Checkpoint(AnswerModel, frozen=True, kw_only=True):
    """One saved state. `checkpoint_id` is the path without the run: "weights/step-100"."""

    checkpoint_id: str
    checkpoint_type: CheckpointType
    time: datetime
    tinker_path: str
    size_bytes: int | None = None
    public: bool = False
    user_metadata: dict[str, str] | None = None
    expires_at: datetime | None = None


class ParsedCheckpointTinkerPath(AnswerModel, frozen=True, kw_only=True):
    """The parts of a `tinker://` path.

    >>> ParsedCheckpointTinkerPath.from_tinker_path("tinker://run-1/weights/step-100").checkpoint_id
    'weights/step-100'
    """

    tinker_path: str
    training_run_id: str
    checkpoint_type: CheckpointType
    checkpoint_id: str

    @classmethod
    def from_tinker_path(cls, tinker_path: str) -> Self:
        """Parses a path as the service writes it; names are not checked further.

        Raises:
            InvalidPathError: it is not `tinker://<run>/<kind>/<name>`.
        """
        parts = tinker_path.removeprefix(PATH_PREFIX).split("/")
        if not tinker_path.startswith(PATH_PREFIX) or len(parts) != 3 or not all(parts):
            raise InvalidPathError(f"{tinker_path!r} does not have the form of a checkpoint path.")
        run_id, kind, name = parts
        if kind not in CHECKPOINT_TYPES:
            raise InvalidPathError(f"{tinker_path!r} names no kind of checkpoint: {kind!r}.")
        return cls(
            tinker_path=tinker_path,
            training_run_id=run_id,
            checkpoint_type=CHECKPOINT_TYPES[kind],
            checkpoint_id=f"{kind}/{name}",
        )


class TrainingRunUsage(AnswerModel, frozen=True, kw_only=True):
    """The usage of one training run."""

    tokens: int = 0
    optimizer_steps: int = 0


class TrainingRun(AnswerModel, frozen=True, kw_only=True):
    """One model that was trained; its id is the model's id."""

    beyond_protocol: ClassVar[frozenset[str]] = frozenset(
        {"ended", "usage", "name", "tags", "status", "latest", "spark", "resumed_from", "lora"}
    )

    training_run_id: str
    base_model: str
    model_owner: str
    is_lora: bool
    corrupted: bool = False
    ended: bool = False  # sent by Tinkex servers: its training state is no longer kept
    lora_rank: int | None = None
    last_request_time: datetime
    last_checkpoint: Checkpoint | None = None
    last_sampler_checkpoint: Checkpoint | None = None
    user_metadata: dict[str, Any] | None = None
    usage: TrainingRunUsage | None = None
    """Fields from here on are sent by Tinkex servers only."""
    name: str | None = None
    tags: dict[str, str] = {}
    status: TrainingRunStatus | None = None
    latest: dict[str, int | float | None] | None = None
    """The last point: step, time, tokens, and the last value of each metric."""
    spark: list[float] | None = None
    """A few losses per token, oldest first, if requested."""
    resumed_from: str | None = None
    """The run whose checkpoint it goes on from."""
    lora: LoraConfig | None = None
    """Its adapter, with the alpha and the seed that the server chose where none was given."""


class Cursor(AnswerModel, frozen=True, kw_only=True):
    """The position of this page in a list."""

    offset: int
    limit: int
    total_count: int


class TrainingRunsResponse(AnswerModel, frozen=True, kw_only=True):
    """One page of training runs."""

    training_runs: list[TrainingRun]
    cursor: Cursor


class CheckpointsListResponse(AnswerModel, frozen=True, kw_only=True):
    """Checkpoints of one run (all of them) or of a user (one page)."""

    checkpoints: list[Checkpoint]
    cursor: Cursor | None = None


class ExternalWeightsUrlsResponse(AnswerModel, frozen=True, kw_only=True):
    """URLs of an exported checkpoint's files, valid without a key until `expires`."""

    urls: dict[str, str]
    expires: datetime


class MergedModelResponse(ExternalWeightsUrlsResponse, frozen=True, kw_only=True):
    """URLs of a merged model's files; `archive_url` has all of them, as a tar file."""

    archive_url: str
    size_bytes: int


class CopyWeightsResponse(AnswerModel, frozen=True, kw_only=True):
    """The path of the copy."""

    tinker_path: str
