"""The pass of a loss that a client uploaded: its graph runs on each datum of a micro-batch.

The model and the head run as for every other loss; the graph gives the slope at the logprobs. A
loss that fails on one datum ends the request of that datum.

Shapes: T tokens of a micro-batch · P its targets · D hidden.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tinkex.engine.custom_loss.bounds import WorkBudget
from tinkex.engine.custom_loss.program import DatumLoss, LossProgram, loss_program
from tinkex.engine.errors import EngineUserError
from tinkex.engine.interface import TrainRequest
from tinkex.engine.model.lm_head import Head, Targets, score, score_with_gradient
from tinkex.engine.training.batching import Item
from tinkex.losses import TARGETS

__all__ = ["UploadedPassLoss", "try_uploaded_loss"]


def try_uploaded_loss(request: TrainRequest) -> None:
    """Returns if the loss can be computed on the first datum with placeholder logprobs.

    A loss that cannot run at all is refused before the model runs for it, and for the requests
    that would share its batch.

    Raises:
        EngineUserError: the loss cannot be computed.
    """
    datum = request.data[0]
    logprobs = torch.full(datum.inputs[TARGETS].shape, -1.0)
    loss_program(request.custom_loss).run(logprobs, datum.inputs, WorkBudget())


class UploadedPassLoss:
    """An uploaded loss over the datums of a micro-batch. `budgets` are by request index."""

    def __init__(self, loss: bytes, items: Sequence[Item], budgets: Mapping[int, WorkBudget]):
        self._program: LossProgram = loss_program(loss)
        self._items, self._budgets = items, budgets
        self._results: dict[int, DatumLoss] = {}
        self.refused: dict[int, EngineUserError] = {}

    def score(self, head: Head, hidden_TD: Tensor, targets: Targets) -> Tensor:
        lp_P = score(head, hidden_TD, targets)
        self._run(lp_P)
        return lp_P

    def score_with_gradient(
        self, head: Head, hidden_TD: Tensor, targets: Targets
    ) -> tuple[Tensor, Tensor]:
        # A datum's graph needs all of its logprobs before the first slope is known.
        slope_P = self._run(score(head, hidden_TD, targets))
        return score_with_gradient(
            head, hidden_TD, targets, slope_P != 0, lambda index_P, _lp_P: slope_P[index_P]
        )

    def loss(self, place: int) -> float:
        found = self._results.get(place)
        return 0.0 if found is None else found.loss

    def metrics(self, place: int) -> Mapping[str, npt.NDArray[np.float64]]:
        found = self._results.get(place)
        return {} if found is None else {n: np.array([v]) for n, v in found.metrics.items()}

    def _run(self, lp_P: Tensor) -> Tensor:
        """Returns the slope by each logprob; 0 for requests whose loss is refused."""
        slope_P = torch.zeros_like(lp_P, device="cpu")
        on_cpu_P, start = lp_P.cpu(), 0
        for place, item in enumerate(self._items):
            shape = item.datum.inputs[TARGETS].shape
            end = start + item.datum.inputs[TARGETS].size
            if item.request_index not in self.refused:
                try:
                    found = self._program.run(
                        on_cpu_P[start:end].reshape(shape),
                        item.datum.inputs,
                        self._budgets[item.request_index],
                    )
                except EngineUserError as error:
                    self.refused[item.request_index] = error
                else:
                    self._results[place] = found
                    slope_P[start:end] = found.slope.reshape(-1)
            start = end
        return slope_P.to(lp_P.device)
