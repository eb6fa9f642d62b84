"""A matrix product with a frozen weight, by the fastest implementation on this machine.

On a CPU in float32 this is oneDNN, not the BLAS torch takes by itself: as fast for many rows and
two to four times faster for few, above all from a weight packed for it. Everywhere else it is
torch's own product. No other module distinguishes the two.

A packed weight is a second copy, good for forward alone. It pays most for few rows, which is what
sampling has; training takes it along for its forward and needs the plain weight for its backward.

Shapes: T rows · D features in · O features out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["FrozenLinear", "product"]

_HAS_ONEDNN: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
_ROWS_HINT = 512
"""Number of rows that the packing is laid out for. From 64 on it is the same layout, and the best
for any number of rows."""


@dataclass(frozen=True, slots=True, eq=False)
class FrozenLinear:
    """`x @ weight.T + bias`, and the gradient by `x`."""

    weight_OD: Tensor
    bias_O: Tensor | None = None
    packed_weight: Tensor | None = None

    @property
    def out_features(self) -> int:
        """The width of the output."""
        return int(self.weight_OD.shape[0])

    @property
    def numel(self) -> int:
        """The number of parameters."""
        return self.weight_OD.numel() + (0 if self.bias_O is None else self.bias_O.numel())

    def packed(self) -> FrozenLinear:
        """Returns the same product, with a copy of the weight laid out for few rows where
        that is faster."""
        if self.packed_weight is not None or not _is_for_onednn(self.weight_OD):
            return self
        weight = torch.ops.mkldnn._reorder_linear_weight(self.weight_OD, _ROWS_HINT)
        return FrozenLinear(self.weight_OD, self.bias_O, weight)

    def forward(self, x_TD: Tensor, plus_TO: Tensor | None = None) -> Tensor:
        """`x @ weight.T + bias + plus`; autograd does not see it."""
        weight = self.weight_OD if self.packed_weight is None else self.packed_weight
        return product(x_TD, weight, self.bias_O, plus_TO)

    def backward(self, dys_TO: Sequence[Tensor]) -> Tensor:
        """`dy @ weight`, the gradient by the input; dy in parts that lie side by side."""
        dx_TD, start = None, 0
        for dy_TO in dys_TO:
            end = start + dy_TO.shape[1]
            dx_TD = product(dy_TO, self.weight_OD[start:end].T, plus_TO=dx_TD)
            start = end
        assert dx_TD is not None, "there is always a part"
        return dx_TD


def product(
    x_TD: Tensor,
    weight_OD: Tensor,
    bias_O: Tensor | None = None,
    plus_TO: Tensor | None = None,
) -> Tensor:
    """`x @ weight.T + bias + plus` of any matrices; autograd does not see it."""
    if _is_for_onednn(weight_OD):
        linear = torch.ops.mkldnn._linear_pointwise
        if plus_TO is None:
            out_TO: Tensor = linear(x_TD, weight_OD, bias_O, "none", [], "")
        else:
            out_TO = linear.binary(x_TD, plus_TO, weight_OD, bias_O, "add")
        return out_TO
    out_TO = x_TD @ weight_OD.T if plus_TO is None else torch.addmm(plus_TO, x_TD, weight_OD.T)
    return out_TO if bias_O is None else out_TO.add_(bias_O)


def _is_for_onednn(weight: Tensor) -> bool:
    if not _HAS_ONEDNN or weight.dtype != torch.float32 or weight.device.type != "cpu":
        return False
    # Columns cut out of a wider matrix would take oneDNN's reference code, which is very slow.
    return weight.is_mkldnn or weight.is_contiguous() or weight.T.is_contiguous()
