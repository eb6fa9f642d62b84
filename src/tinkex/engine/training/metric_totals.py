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
    """Values per target in, one number per metric out."""

    def __init__(self) -> None:
        self._parts: defaultdict[str, list[npt.NDArray[np.float64]]] = defaultdict(list)

    def add(self, name: str, values: npt.NDArray[np.float64]) -> None:
        """Takes the values of one datum's targets."""
        self._parts[name].append(values)

    def reduced(self) -> dict[str, float]:
        """The metrics; means are over all targets of the request."""
        return {
            name: float(getattr(np.concatenate(parts), name.rpartition(":")[2])())
            for name, parts in self._parts.items()
        }
