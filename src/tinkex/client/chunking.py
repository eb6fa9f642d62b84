"""Cutting a batch into requests, and putting their results together again.

Pure. A request holds so many examples and so many estimated bytes; a single example above the byte
limit travels alone. Metrics say in their suffix how they combine over chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tinkex.errors import ValidationError
from tinkex.types.datum import Datum
from tinkex.types.training import ForwardBackwardOutput

MODULUS = 2**64


def split(data: Sequence[Datum], *, max_examples: int, max_bytes: int) -> list[list[Datum]]:
    """The batch as chunks within the limits, in order; never an empty one.

    Raises:
        ValidationError: there is no data, or something in it is not a Datum.
    """
    if isinstance(data, Datum):
        raise ValidationError("A batch is a list of Datum, not one Datum; write [datum].")
    if not data:
        raise ValidationError("The batch is empty; give at least one Datum.")
    chunks: list[list[Datum]] = []
    size = 0
    for datum in data:
        if not isinstance(datum, Datum):
            raise ValidationError(f"A batch is a list of Datum, not of {type(datum).__name__}.")
        weight = datum.size_bytes
        if not chunks or len(chunks[-1]) >= max_examples or size + weight > max_bytes:
            chunks.append([])
            size = 0
        chunks[-1].append(datum)
        size += weight
    return chunks


def combine(outputs: Sequence[ForwardBackwardOutput]) -> ForwardBackwardOutput:
    """One output for the whole batch from the outputs of its chunks, in order."""
    return ForwardBackwardOutput(
        loss_fn_output_type=outputs[0].loss_fn_output_type,
        loss_fn_outputs=[row for output in outputs for row in output.loss_fn_outputs],
        metrics=reduce_metrics(
            [output.metrics for output in outputs],
            [len(output.loss_fn_outputs) for output in outputs],
        ),
    )


def reduce_metrics(
    metrics: Sequence[dict[str, float]], num_examples: Sequence[int]
) -> dict[str, float]:
    """Metrics over all chunks, by the suffix after the colon; a name missing in one is dropped.

    >>> reduce_metrics([{"loss:sum": 1.0, "a:mean": 2.0}, {"loss:sum": 2.0, "a:mean": 5.0}], [2, 1])
    {'loss:sum': 3.0, 'a:mean': 3.0}
    """
    reduced: dict[str, float] = {}
    for name in metrics[0]:
        if all(name in chunk for chunk in metrics):
            values = [chunk[name] for chunk in metrics]
            reduced.update(_reduce(name, values, num_examples))
    return reduced


def _reduce(name: str, values: list[float], weights: Sequence[int]) -> dict[str, float]:
    _, _, suffix = name.rpartition(":")
    if suffix == "unique":
        return {name if i == 0 else f"{name}_{i}": value for i, value in enumerate(values)}
    if suffix in _REDUCTIONS:
        return {name: _REDUCTIONS[suffix](values, weights)}
    # A metric without a known suffix cannot be combined; of a single chunk it is returned.
    return {name: values[0]} if len(values) == 1 and ":" not in name else {}


def _mean(values: list[float], weights: Sequence[int]) -> float:
    total = sum(weights)
    if total == 0:
        return sum(values) / len(values)
    return sum(v * w for v, w in zip(values, weights, strict=True)) / total


_REDUCTIONS: dict[str, Callable[[list[float], Sequence[int]], float]] = {
    "mean": _mean,
    "sum": lambda values, _: sum(values),
    "min": lambda values, _: min(values),
    "max": lambda values, _: max(values),
    "slack": lambda values, weights: max(values) - _mean(values, weights),
    "hash2": lambda values, _: float(sum(int(v) for v in values) % MODULUS),
}
