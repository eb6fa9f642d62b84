"""The pass of a loss that is declared in this server: one function over a micro-batch's targets.

Shapes: T tokens of a micro-batch · P its targets · D hidden.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tinkex.engine.errors import EngineUserError
from tinkex.engine.model.lm_head import Head, Targets, score, score_with_gradient
from tinkex.engine.training.batching import Item
from tinkex.engine.training.loss_slope import (
    counted_targets,
    loss_and_slope,
    loss_metrics,
    may_have_slope,
)
from tinkex.losses import TARGETS, Loss, LossBatch, LossInput

__all__ = ["DeclaredPassLoss"]


class DeclaredPassLoss:
    """A `tinkex.losses.Loss` over the targets of a micro-batch."""

    refused: Mapping[int, EngineUserError] = {}  # validation refuses invalid inputs earlier

    def __init__(
        self, loss: Loss, config: dict[str, float], items: Sequence[Item], device: torch.device
    ) -> None:
        self._loss, self._items, self._device = loss, items, device
        counts = [int(item.datum.inputs[TARGETS].size) for item in items]
        self._edges = np.cumsum([0, *counts])
        self._counts = counts
        self._batch = self._build_batch(config)
        self._loss_P = np.empty(0, np.float64)
        self._counts_P: npt.NDArray[np.bool_] | None = None  # None: all targets count
        self._metrics_P: dict[str, npt.NDArray[np.float64]] = {}

    def score(self, head: Head, hidden_TD: Tensor, targets: Targets) -> Tensor:
        lp_P = score(head, hidden_TD, targets)
        self._finish(lp_P, loss_and_slope(self._loss, lp_P, self._batch)[0])
        return lp_P

    def score_with_gradient(
        self, head: Head, hidden_TD: Tensor, targets: Targets
    ) -> tuple[Tensor, Tensor]:
        loss, batch = self._loss, self._batch
        is_live_P = may_have_slope(loss, batch)
        if loss.is_separable:

            def slope_of(index_P: Tensor, lp_P: Tensor) -> Tensor:
                return loss_and_slope(loss, lp_P, batch.select(index_P))[1]

        else:
            # A loss over whole sequences needs every logprob before the first slope is known.
            all_P = loss_and_slope(loss, score(head, hidden_TD, targets), batch)[1]

            def slope_of(index_P: Tensor, lp_P: Tensor) -> Tensor:
                return all_P[index_P]

        lp_P, dhidden_TD = score_with_gradient(head, hidden_TD, targets, is_live_P, slope_of)
        self._finish(lp_P, loss_and_slope(loss, lp_P, batch)[0])
        return lp_P, dhidden_TD

    def loss(self, place: int) -> float:
        return float(self._loss_P[self._range(place)].sum())

    def metrics(self, place: int) -> Mapping[str, npt.NDArray[np.float64]]:
        some = self._range(place)
        if self._counts_P is not None:
            some = np.flatnonzero(self._counts_P[some]) + some.start
        return {name: each_P[some] for name, each_P in self._metrics_P.items()}

    def _finish(self, lp_P: Tensor, loss_P: Tensor) -> None:
        metrics_P = loss_metrics(self._loss, lp_P, self._batch)
        counts_P = counted_targets(self._loss, lp_P, self._batch)
        self._counts_P = None if counts_P is None else counts_P.cpu().numpy()
        self._metrics_P = {name: m_P.double().cpu().numpy() for name, m_P in metrics_P.items()}
        self._loss_P = loss_P.double().cpu().numpy()

    def _range(self, place: int) -> slice:
        return slice(self._edges[place], self._edges[place + 1])

    def _build_batch(self, config: dict[str, float]) -> LossBatch:
        names = sorted(self._items[0].datum.inputs.keys() - {TARGETS})
        arrays = {name: self._build_input(self._loss.input(name)) for name in names}
        sequence = [np.full(count, n) for n, count in enumerate(self._counts)]
        return LossBatch(arrays, self._tensor(sequence, torch.int64), len(self._items), config)

    def _build_input(self, spec: LossInput) -> Tensor:
        parts = [item.datum.inputs[spec.name].reshape(-1) for item in self._items]
        if spec.per == "datum":
            parts = [np.repeat(part, n) for part, n in zip(parts, self._counts, strict=True)]
        return self._tensor(parts, torch.int64 if spec.dtype == "int64" else torch.float32)

    def _tensor(self, parts: Sequence[np.ndarray], dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(np.concatenate(parts)).to(device=self._device, dtype=dtype)
