"""The interface of the loss of one micro-batch, for declared and uploaded losses.

`declared_loss` has the losses of this server, functions over all targets of a micro-batch;
`uploaded_loss` those of clients, graphs that run on one datum at a time.

Shapes: T tokens of a micro-batch · P its targets · D hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from tinkex.engine.errors import EngineUserError
from tinkex.engine.model.lm_head import Head, Targets

__all__ = ["PassLoss"]


class PassLoss(Protocol):
    """Scores the targets; afterwards it has the loss and the metrics of each datum."""

    @property
    def refused(self) -> Mapping[int, EngineUserError]:
        """The errors of requests whose loss cannot be computed, by request index."""
        ...

    def score(self, head: Head, hidden_TD: Tensor, targets: Targets) -> Tensor:
        """Returns the logprob of every target."""
        ...

    def score_with_gradient(
        self, head: Head, hidden_TD: Tensor, targets: Targets
    ) -> tuple[Tensor, Tensor]:
        """Returns the logprob of every target, and the loss's gradient by the hidden states."""
        ...

    def loss(self, place: int) -> float:
        """Returns the loss of the datum at this place of the micro-batch."""
        ...

    def metrics(self, place: int) -> Mapping[str, npt.NDArray[np.float64]]:
        """Returns the datum's metrics: some values of each, which are reduced over the request."""
        ...
