"""The few operations a decoder layer is made of, each with its own backward.

Written out by hand because the base is frozen: no gradient of a base weight is ever formed, only
what the backward really needs is kept, and what is cheap to compute is recomputed. Autograd
sees none of it. Knows nothing of layers or files.

Shapes: T tokens of all sequences in a row · D features in · O features out · F MLP width ·
H heads · C features of a head · R those that are rotated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "ACTIVATIONS",
    "Angles",
    "GatedActivation",
    "apply_rope",
    "rms_norm",
    "rms_norm_backward",
    "rms_scaled",
    "rms_scaled_",
    "rms_unit",
]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`x` scaled to unit root mean square over its last axis, times a frozen weight.

    A weight kept in a wider type is applied before rounding. The second answer is the scale, which
    the backward needs.
    """
    # In float32 whatever the model's type: half precision loses the small squares.
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=_wide(x))
    inverse = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return rms_scaled_(rms_unit(x, inverse), weight, x.dtype), inverse


def rms_unit(x: Tensor, inverse: Tensor) -> Tensor:
    """`x` at unit root mean square."""
    return x * inverse


def rms_scaled_(unit: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns `unit * weight` in this type. Overwrites `unit`."""
    if weight.dtype == dtype:
        return unit.to(dtype).mul_(weight)
    return unit.mul_(weight).to(dtype)


def rms_scaled(unit: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the same product and leaves `unit` unchanged."""
    if weight.dtype == dtype:
        return unit.to(dtype) * weight
    return (unit * weight).to(dtype)


def rms_norm_backward(
    dy: Tensor, unit: Tensor, inverse: Tensor, weight: Tensor, plus: Tensor | None = None
) -> Tensor:
    """Returns the gradient by `x`, added to `plus` if given. Overwrites `dy`."""
    dunit = dy.to(unit.dtype).mul_(weight)
    along = (dunit * unit).sum(-1, keepdim=True).div_(-unit.shape[-1]).mul_(inverse)
    base = (
        dunit.mul_(inverse) if plus is None else torch.addcmul(plus.to(unit.dtype), dunit, inverse)
    )
    return base.addcmul_(unit, along).to(dy.dtype)


class GatedActivation(NamedTuple):
    """`function(gate) * up`, which the MLPs here have; `slope` is the backward of the function."""

    function: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]  # (dy, gate) -> dgate, written over dy

    def forward(self, gate_TF: Tensor, up_TF: Tensor) -> Tensor:
        """`function(gate) * up`."""
        return self.function(gate_TF).mul_(up_TF)

    def backward(
        self, dy_TF: Tensor, gate_TF: Tensor, up_TF: Tensor, active_TF: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns the gradients by gate and up. Overwrites `dy` and `active`,
        which is `function(gate)`."""
        dup_TF = active_TF.mul_(dy_TF)
        dy_TF.mul_(up_TF)
        return self.slope(dy_TF, gate_TF), dup_TF


def _silu_slope(dy: Tensor, gate: Tensor) -> Tensor:
    torch.ops.aten.silu_backward.grad_input(dy, gate, grad_input=dy)
    return dy


def _gelu_tanh(gate: Tensor) -> Tensor:
    return F.gelu(gate, approximate="tanh")


def _gelu_tanh_slope(dy: Tensor, gate: Tensor) -> Tensor:
    torch.ops.aten.gelu_backward.grad_input(dy, gate, approximate="tanh", grad_input=dy)
    return dy


ACTIVATIONS = {
    "silu": GatedActivation(F.silu, _silu_slope),
    "gelu_tanh": GatedActivation(_gelu_tanh, _gelu_tanh_slope),
}
"""By the names a decoder's description has for them."""


class Angles(NamedTuple):
    """Cosine and sine of every row's position.

    There are as many sines as features are rotated, the first of each head; behind those the
    cosines are 1.
    """

    cos_T1C: Tensor
    sin_T1R: Tensor

    def inverse(self) -> Angles:
        """Returns the angles of the inverse rotation, which the backward applies."""
        return Angles(self.cos_T1C, -self.sin_T1R)


def apply_rope(
    x_THC: Tensor, cos_T1C: Tensor, sin_T1R: Tensor, out: Tensor | None = None
) -> Tensor:
    """Returns `x` rotated by the angles of its positions."""
    rotated = sin_T1R.shape[-1]
    half = rotated // 2
    out = torch.mul(x_THC, cos_T1C, out=out)
    out[..., :half].addcmul_(x_THC[..., half:rotated], sin_T1R[..., :half], value=-1)
    out[..., half:rotated].addcmul_(x_THC[..., :half], sin_T1R[..., half:])
    return out


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32
