"""The few operations a decoder layer is made of, each with its own backward.

Written out by hand because the base is frozen: no gradient of a base weight is ever formed, only
what the backward really needs is kept, and what is cheap to make again is made again. Autograd
sees none of it. Knows nothing of layers or files.

Shapes: T tokens of all sequences in a row · D features in · O features out · F MLP width ·
H heads · C features of a head · R rank times the number of matrices fused on one input.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "Angles",
    "apply_rope",
    "rms_norm",
    "rms_norm_backward",
    "rms_unit",
    "swiglu",
    "swiglu_backward",
]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`x` scaled to unit root mean square over its last axis, times a frozen weight.

    The second answer is the scale, which the backward needs.
    """
    # In float32 whatever the model's type: half precision loses the small squares.
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=_wide(x))
    inverse = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return rms_unit(x, inverse).to(x.dtype).mul_(weight), inverse


def rms_unit(x: Tensor, inverse: Tensor) -> Tensor:
    """`x` at unit root mean square."""
    return x * inverse


def rms_norm_backward(
    dy: Tensor, unit: Tensor, inverse: Tensor, weight: Tensor, plus: Tensor | None = None
) -> Tensor:
    """The gradient by `x`, added to `plus` if there is one. Uses up `dy`."""
    dunit = dy.to(unit.dtype).mul_(weight)
    along = (dunit * unit).sum(-1, keepdim=True).div_(-unit.shape[-1]).mul_(inverse)
    base = (
        dunit.mul_(inverse) if plus is None else torch.addcmul(plus.to(unit.dtype), dunit, inverse)
    )
    return base.addcmul_(unit, along).to(dy.dtype)


def swiglu(gate_TF: Tensor, up_TF: Tensor) -> Tensor:
    """`silu(gate) * up`."""
    return F.silu(gate_TF).mul_(up_TF)


def swiglu_backward(
    dy_TF: Tensor, gate_TF: Tensor, up_TF: Tensor, silu_TF: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients by gate and up. Uses up `dy` and `silu`, which is that of the gate."""
    dup_TF = silu_TF.mul_(dy_TF)
    dy_TF.mul_(up_TF)
    return torch.ops.aten.silu_backward.grad_input(dy_TF, gate_TF, grad_input=dy_TF), dup_TF


class Angles(NamedTuple):
    """Cosine and sine of every row's position."""

    cos_T1C: Tensor
    sin_T1C: Tensor

    def back(self) -> Angles:
        """Those that turn back, which is the backward."""
        return Angles(self.cos_T1C, -self.sin_T1C)


def apply_rope(
    x_THC: Tensor, cos_T1C: Tensor, sin_T1C: Tensor, out: Tensor | None = None
) -> Tensor:
    """`x` turned by its position's angles."""
    half = x_THC.shape[-1] // 2
    out = torch.mul(x_THC, cos_T1C, out=out)
    out[..., :half].addcmul_(x_THC[..., half:], sin_T1C[..., :half], value=-1)
    out[..., half:].addcmul_(x_THC[..., :half], sin_T1C[..., half:])
    return out


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32
