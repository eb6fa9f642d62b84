"""The few operations a decoder layer is made of, each with its own backward.

Written out by hand because the base is frozen: no gradient of a base weight is ever formed, and
only what the backward really needs is kept. Knows nothing of layers or files.

Shapes: T tokens of all sequences in a row · D features in · O features out · F MLP width ·
H heads · C features of a head · R rank times the number of matrices fused on one input.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tinkex.engine.linear import FrozenLinear

__all__ = ["LoraPair", "Segment", "apply_rope", "lora_linear", "rms_norm", "swiglu"]


@dataclass(frozen=True, slots=True)
class LoraPair:
    """LoRA of matrices fused on one input: their A stacked, and each one's B.

    The change of output part j is `scale * x @ A_j.T @ B_j.T`.
    """

    a_RD: Tensor
    bs_OR: tuple[Tensor, ...]
    scale: float


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows `start..end` of the batch, which belong to one adapter."""

    start: int
    end: int
    pair: LoraPair


def lora_linear(x_TD: Tensor, linear: FrozenLinear, segments: list[Segment]) -> Tensor:
    """The frozen product of `x`, and in each segment the LoRA of its adapter."""
    params = [p for s in segments for p in (s.pair.a_RD, *s.pair.bs_OR)]
    out: Tensor = _LoraLinear.apply(x_TD, linear, segments, *params)  # type: ignore[no-untyped-call]
    return out


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`x` scaled to unit root mean square over its last axis, times a frozen weight."""
    out: Tensor = _RmsNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call]
    return out


def swiglu(gate_up_T2F: Tensor) -> Tensor:
    """`silu(gate) * up` of the two halves."""
    out: Tensor = _SwiGlu.apply(gate_up_T2F)  # type: ignore[no-untyped-call]
    return out


def apply_rope(x_THC: Tensor, cos_TC: Tensor, sin_TC: Tensor) -> Tensor:
    """`x` turned by its position's angles."""
    out: Tensor = _Rope.apply(x_THC, cos_TC.unsqueeze(1), sin_TC.unsqueeze(1))  # type: ignore[no-untyped-call]
    return out


class _LoraLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_TD: Tensor,
        linear: FrozenLinear,
        segments: list[Segment],
        *params: Tensor,
    ) -> Tensor:
        y_TO = linear.forward(x_TD)
        downs = [x_TD[s.start : s.end] @ s.pair.a_RD.to(x_TD.dtype).T for s in segments]
        for segment, down_TR in zip(segments, downs, strict=True):
            _add_up(y_TO[segment.start : segment.end], down_TR, segment.pair)
        ctx.save_for_backward(x_TD, *downs)
        ctx.linear, ctx.segments = linear, segments
        return y_TO

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (dy_TO,) = grad_outputs
        x_TD, *downs = ctx.saved_tensors
        dx_TD = ctx.linear.backward(dy_TO) if ctx.needs_input_grad[0] else None
        grads: list[Tensor | None] = []
        for segment, down_TR in zip(ctx.segments, downs, strict=True):
            rows = slice(segment.start, segment.end)
            dx_rows = None if dx_TD is None else dx_TD[rows]
            grads += _lora_backward(segment.pair, x_TD[rows], down_TR, dy_TO[rows], dx_rows)
        return (dx_TD, None, None, *grads)


def _add_up(y_TO: Tensor, down_TR: Tensor, pair: LoraPair) -> None:
    """Adds each part's `scale * down @ B.T` to its columns of y, in place."""
    rank, column = down_TR.shape[1] // len(pair.bs_OR), 0
    for j, b_OR in enumerate(pair.bs_OR):
        part = y_TO[:, column : column + b_OR.shape[0]]
        part.addmm_(down_TR[:, j * rank : (j + 1) * rank], b_OR.to(y_TO.dtype).T, alpha=pair.scale)
        column += b_OR.shape[0]


def _lora_backward(
    pair: LoraPair, x_TD: Tensor, down_TR: Tensor, dy_TO: Tensor, dx_TD: Tensor | None
) -> list[Tensor | None]:
    """Gradients of A and each B; adds the LoRA's share to dx, in place."""
    rank, column = down_TR.shape[1] // len(pair.bs_OR), 0
    ddown_TR = torch.empty_like(down_TR)
    grads: list[Tensor | None] = [None]
    for j, b_OR in enumerate(pair.bs_OR):
        dy_part = dy_TO[:, column : column + b_OR.shape[0]]
        ranks = slice(j * rank, (j + 1) * rank)
        ddown_TR[:, ranks] = dy_part @ b_OR.to(dy_TO.dtype)
        grads.append((dy_part.T @ down_TR[:, ranks]).mul_(pair.scale).to(b_OR.dtype))
        column += b_OR.shape[0]
    ddown_TR.mul_(pair.scale)
    grads[0] = (ddown_TR.T @ x_TD).to(pair.a_RD.dtype)
    if dx_TD is not None:
        dx_TD.addmm_(ddown_TR, pair.a_RD.to(x_TD.dtype))
    return grads


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        # In float32 whatever the model's type: half precision loses the small squares.
        wide = x.float()
        inverse = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True).add_(eps))
        ctx.save_for_backward(x, weight, inverse)
        return (wide * inverse).to(x.dtype) * weight

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        (dy,) = grad_outputs
        x, weight, inverse = ctx.saved_tensors
        unit = x.float() * inverse
        dunit = dy.float() * weight.float()
        along = (dunit * unit).mean(-1, keepdim=True)
        return dunit.sub_(unit.mul_(along)).mul_(inverse).to(dy.dtype), None, None


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up_T2F: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up_T2F)
        gate_TF, up_TF = gate_up_T2F.chunk(2, dim=-1)
        return F.silu(gate_TF).mul_(up_TF)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
        (dy_TF,) = grad_outputs
        (gate_up_T2F,) = ctx.saved_tensors
        gate_TF, up_TF = gate_up_T2F.chunk(2, dim=-1)
        grad_T2F = torch.empty_like(gate_up_T2F)
        dgate_TF, dup_TF = grad_T2F.chunk(2, dim=-1)
        sigmoid_TF = torch.sigmoid(gate_TF)
        torch.mul(gate_TF, sigmoid_TF, out=dup_TF)
        # silu' = sigmoid + silu * (1 - sigmoid)
        torch.addcmul(sigmoid_TF, dup_TF, 1 - sigmoid_TF, out=dgate_TF)
        dgate_TF.mul_(up_TF).mul_(dy_TF)
        dup_TF.mul_(dy_TF)
        return grad_T2F


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_THC: Tensor, cos_T1C: Tensor, sin_T1C: Tensor) -> Tensor:
        ctx.save_for_backward(cos_T1C, sin_T1C)
        return _turn(x_THC, cos_T1C, sin_T1C)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        (dy_THC,) = grad_outputs
        cos_T1C, sin_T1C = ctx.saved_tensors
        # The transpose of a rotation is the rotation the other way.
        return _turn(dy_THC, cos_T1C, -sin_T1C), None, None


def _turn(x_THC: Tensor, cos_T1C: Tensor, sin_T1C: Tensor) -> Tensor:
    half = x_THC.shape[-1] // 2
    out = x_THC * cos_T1C
    out[..., :half].addcmul_(x_THC[..., half:], sin_T1C[..., :half], value=-1)
    out[..., half:].addcmul_(x_THC[..., :half], sin_T1C[..., half:])
    return out
