"""Metrics of one request, collected over its datums and reduced by the suffix of their names.

A loss declares its metrics (`tinkex.losses.declaration.LossMetric`); `step.TrainOutput.result` adds
those of every loss.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import numpy.typing as npt

__all__ = ["MetricTotals"]


class MetricTotals:
    """Sums values per target and reduces them to one number per metric."""

    def __init__(self) -> None:
        self._parts: defaultdict[str, list[npt.NDArray[np.float64]]] = defaultdict(list)

    def add(self, name: str, values: npt.NDArray[np.float64]) -> None:
        """Adds the values of one datum's targets; no values if none of its targets counts."""
        self._parts[name].append(values)

    def reduced(self) -> dict[str, float]:
        """Returns the metrics; a mean is over datums, each by its own mean. Without any
        value it is 0."""
        return {name: _reduced(name, parts) for name, parts in self._parts.items()}


def _reduced(name: str, parts: list[npt.NDArray[np.float64]]) -> float:
    given = [part for part in parts if part.size]
    if not given:
        return 0.0
    reduction = name.rpartition(":")[2]
    if reduction == "mean":
        return float(np.mean([part.mean() for part in given]))
    return float(getattr(np.concatenate(given), reduction)())
