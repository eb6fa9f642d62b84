"""A matrix product with a frozen weight, by the fastest way the machine has.

On a CPU in float32 that is oneDNN, not the BLAS torch takes by itself: as fast for many rows and
two to four times faster for few, above all from a weight packed for it. Everywhere else it is
torch's own product. The one place that knows the difference.

A packed weight is a second copy, good for forward alone, and pays for few rows. Training has many
and needs the plain weight for its backward anyway, so it does without; sampling asks for it.

Shapes: T rows · D features in · O features out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["FrozenLinear"]

_HAS_ONEDNN: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
_ROWS_HINT = 512
"""What the packing is laid out for. From 64 on it is the same one, and the best for any rows."""


@dataclass(frozen=True, slots=True, eq=False)
class FrozenLinear:
    """`x @ weight.T + bias`, and the gradient by `x`."""

    weight_OD: Tensor
    bias_O: Tensor | None = None
    packed_weight: Tensor | None = None

    @property
    def out_features(self) -> int:
        """The width of what comes out."""
        return int(self.weight_OD.shape[0])

    @property
    def numel(self) -> int:
        """How many numbers it has."""
        return self.weight_OD.numel() + (0 if self.bias_O is None else self.bias_O.numel())

    def packed(self) -> FrozenLinear:
        """The same, with a copy of the weight laid out for few rows where that is of use."""
        if self.packed_weight is not None or not _has_onednn(self.weight_OD):
            return self
        weight = torch.ops.mkldnn._reorder_linear_weight(self.weight_OD, _ROWS_HINT)
        return FrozenLinear(self.weight_OD, self.bias_O, weight)

    def forward(self, x_TD: Tensor) -> Tensor:
        """`x @ weight.T + bias`; autograd does not see it."""
        if self.packed_weight is not None:
            return _onednn_linear(x_TD, self.packed_weight, self.bias_O)
        if _has_onednn(self.weight_OD):
            return _onednn_linear(x_TD, self.weight_OD, self.bias_O)
        return F.linear(x_TD, self.weight_OD, self.bias_O)

    def backward(self, dy_TO: Tensor) -> Tensor:
        """`dy @ weight`: the gradient by the input."""
        if _has_onednn(self.weight_OD):
            return _onednn_linear(dy_TO, self.weight_OD.T, None)
        return dy_TO @ self.weight_OD


def _has_onednn(weight: Tensor) -> bool:
    return _HAS_ONEDNN and weight.dtype == torch.float32 and weight.device.type == "cpu"


def _onednn_linear(x_TD: Tensor, weight_OD: Tensor, bias_O: Tensor | None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x_TD, weight_OD, bias_O, "none", [], "")
    return out
