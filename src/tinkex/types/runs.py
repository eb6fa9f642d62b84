"""Facts of runs that only Tinkex servers have: status, series of metrics, usage."""

from __future__ import annotations

from typing import Literal

from tinkex.types._model import AnswerModel

RunState = Literal["running", "waiting", "idle", "ended"]


class TrainingRunStatus(AnswerModel, frozen=True, kw_only=True):
    """The state of a run, and why it waits or is over."""

    state: RunState
    reason: str | None = None


class RunMetricsResponse(AnswerModel, frozen=True, kw_only=True):
    """Points of a run's metrics, oldest first, column by column.

    The columns `index`, `step`, `time` (seconds since the epoch) and `tokens` have a value for each
    point, those in `names` have None where a point lacks the metric. `cursor` is where to go on.
    """

    names: list[str]
    columns: dict[str, list[int | float | None]]
    cursor: int
    has_more: bool = False
    thinned: bool = False

    def __repr__(self) -> str:
        count = len(self.columns.get("index", []))
        return f"RunMetricsResponse({count} points of {', '.join(self.names) or 'no metric'})"


class LogMetricsResponse(AnswerModel, frozen=True, kw_only=True):
    """Logged metrics are kept as a point of this step."""

    step: int
    cursor: int


class UsageItem(AnswerModel, frozen=True, kw_only=True):
    """Usage of one day, key or run; columns that it is not grouped by are None.

    `bytes_kept` is the size on disk now or, for a past day, at its last count.
    """

    day: str | None = None  # YYYY-MM-DD
    key: str | None = None
    key_id: int | None = None
    run: str | None = None
    tokens_trained: int = 0
    tokens_sampled: int = 0
    tokens_scored: int = 0
    tokens_cached: int = 0
    engine_seconds: float = 0.0
    bytes_kept: int = 0


class UsageResponse(AnswerModel, frozen=True, kw_only=True):
    """An account's usage of a period, in groups."""

    rows: list[UsageItem]
