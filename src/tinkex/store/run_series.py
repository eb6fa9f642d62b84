"""The head of a run's series of metrics, from which points are made; kept in the run's own row.

Pure. The head holds totals since the last optimizer step, the run's counts, the last value of each
metric, and a short line of losses for lists. The points are in `run_points`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

__all__ = ["LoggedHead", "PointBody", "SeriesHead", "StepTotals", "TrainedBatch"]

SPARK_POINTS = 32
"""Maximum losses in the line that lists show."""

LOSS = "loss:sum"
LOSS_PER_TOKEN = "loss_per_token"  # noqa: S105  the name of a metric


class TrainedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of one forward_backward. `num_learned`: targets that count in its loss."""

    metrics: dict[str, float]
    num_tokens: int
    num_learned: int
    num_examples: int


class PointBody(msgspec.Struct, array_like=True, frozen=True):
    """One point of a series, as it is stored."""

    step: int
    time: float
    tokens: int
    metrics: dict[str, float | None]


class StepTotals(msgspec.Struct, array_like=True, frozen=True):
    """Totals of the training since the last optimizer step. A metric has its value
    and its weight."""

    num_learned: int = 0
    metrics: dict[str, tuple[float, int]] = {}

    def with_batch(self, batch: TrainedBatch) -> StepTotals:
        """Returns the totals with one more batch, by the suffix of each metric's name."""
        metrics = dict(self.metrics)
        for name, value in batch.metrics.items():
            metrics[name] = _joined(name, metrics.get(name), value, batch.num_examples)
        return StepTotals(self.num_learned + batch.num_learned, metrics)

    def reduced(self) -> dict[str, float | None]:
        """Returns the metrics of the whole step, with the loss per token."""
        found: dict[str, float | None] = {name: value for name, (value, _) in self.metrics.items()}
        if LOSS in found and self.num_learned:
            found[LOSS_PER_TOKEN] = self.metrics[LOSS][0] / self.num_learned
        return found


class SeriesHead(msgspec.Struct, array_like=True, frozen=True):
    """The state of a run's series."""

    step: int = 0
    tokens: int = 0
    num_points: int = 0  # that optimizer steps made; not those of runs before it
    since_step: StepTotals = StepTotals()
    latest: PointBody | None = None
    spark: list[float] = []
    spark_every: int = 1  # steps between two losses of the line

    def trained(self, batch: TrainedBatch) -> SeriesHead:
        """Returns the head after a forward_backward."""
        return msgspec.structs.replace(
            self,
            tokens=self.tokens + batch.num_tokens,
            since_step=self.since_step.with_batch(batch),
        )

    def stepped(self, metrics: Mapping[str, float], now: float) -> SeriesHead:
        """Returns the head after an optimizer step, whose point is `latest`."""
        found = {**self.since_step.reduced(), **metrics}
        step = self.step + 1
        spark, every = self._spark_with(found.get(LOSS_PER_TOKEN))
        return SeriesHead(
            step=step,
            tokens=self.tokens,
            num_points=self.num_points + 1,
            latest=PointBody(step, now, self.tokens, found),
            spark=spark,
            spark_every=every,
        )

    def reset(self) -> SeriesHead:
        """Returns the head after other weights were loaded: pending gradients are dropped."""
        return msgspec.structs.replace(self, since_step=StepTotals())

    def _spark_with(self, loss: float | None) -> tuple[list[float], int]:
        """Returns the line of losses with this one if its step is due. A full line
        drops every second."""
        if loss is None or self.num_points % self.spark_every:
            return self.spark, self.spark_every
        if len(self.spark) == SPARK_POINTS:
            return [*self.spark[::2], loss], 2 * self.spark_every
        return [*self.spark, loss], self.spark_every


class LoggedHead(msgspec.Struct, array_like=True, frozen=True):
    """Metrics that users logged: the last value of each, and the last calls."""

    metrics: dict[str, float | None] = {}
    time: float = 0.0
    num_points: int = 0
    call_ids: list[str] = []


def _joined(
    name: str, before: tuple[float, int] | None, value: float, weight: int
) -> tuple[float, int]:
    """Combines a metric of the batches so far with that of one more batch."""
    if before is None:
        return value, weight
    so_far, total = before
    suffix = name.rpartition(":")[2]
    if suffix == "sum":
        value = so_far + value
    elif suffix == "mean":
        value = (so_far * total + value * weight) / max(1, total + weight)
    elif suffix == "max":
        value = max(so_far, value)
    elif suffix == "min":
        value = min(so_far, value)
    return value, total + weight
