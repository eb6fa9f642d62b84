"""The attention of a training pass: forward and backward, with the turning of queries and keys.

On a CPU queries and keys are turned on their way into lanes and their gradients on their way back,
so that neither is copied for it; the weights are kept for the backward while there is room for
them, and made again where there is none. Elsewhere torch's attention and autograd do it.

Shapes: T tokens of all sequences in a row · H heads · K key/value heads · G = H / K heads that
share one · J = H + K · C features of a head · B batch of lanes · Q rows of lanes · M keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from tinkex.engine.attention.cpu import copy, fill, pack_sequences, spread, take
from tinkex.engine.attention.packed import attend_by_torch
from tinkex.engine.ops.layer_ops import Angles, apply_rope

__all__ = ["KEPT_BYTES", "AttentionTape", "Gradients", "TrainingAttention", "training_attention"]

KEPT_BYTES = 256 * 2**20
"""Memory for the weights of all layers of a pass."""


class Gradients(NamedTuple):
    """The gradients by queries and keys, as they were before they were turned, and by values."""

    q_THC: Tensor
    k_TKC: Tensor
    v_TKC: Tensor


class _LaneTape(NamedTuple):
    q_BQC: Tensor
    k_BMC: Tensor
    v_BMC: Tensor
    kept: list[Tensor] | None


class _TurnedTape(NamedTuple):
    q_THC: Tensor
    k_TKC: Tensor
    v_TKC: Tensor


AttentionTape = list[_LaneTape] | _TurnedTape
"""What a layer's attention leaves for its backward."""


class TrainingAttention(Protocol):
    """Whole sequences, one after the other, each attending to itself alone; for one pass."""

    def forward(
        self, qk_TJC: Tensor, v_TKC: Tensor, window: int, rope: int = 0
    ) -> tuple[Tensor, AttentionTape]:
        """What each query sees, [T, H * C], and the tape. `window` 0 means everything before it,
        `rope` says by which of the angles queries and keys are turned."""
        ...

    def backward(
        self, dseen_TD: Tensor, tape: AttentionTape, window: int, rope: int = 0
    ) -> Gradients:
        """The gradients of what `forward` was given."""
        ...


def training_attention(
    lengths: list[int], ropes: Sequence[Angles], scale: float, kept_bytes: int = KEPT_BYTES
) -> TrainingAttention:
    """The attention of sequences of these lengths, by the angles of each of the model's ropes.
    `scale` is that of the scores."""
    if ropes[0].cos_T1C.device.type == "cpu":
        return _InLanes(lengths, ropes, scale, kept_bytes)
    return _ByTorch(lengths, ropes, scale)


class _InLanes:
    def __init__(
        self, lengths: list[int], ropes: Sequence[Angles], scale: float, kept_bytes: int
    ) -> None:
        self._lanes = pack_sequences(lengths)
        # Of queries and keys, by rope. Keys are turned and scaled in one.
        self._turns = [(angles, Angles(*(x * scale for x in angles))) for angles in ropes]
        self._turns_back = [(q.back(), k.back()) for q, k in self._turns]
        self._room = kept_bytes

    def forward(
        self, qk_TJC: Tensor, v_TKC: Tensor, window: int, rope: int = 0
    ) -> tuple[Tensor, AttentionTape]:
        turn_q, turn_k = (partial(_turn, angles) for angles in self._turns[rope])
        num_heads, num_keys = qk_TJC.shape[1] - v_TKC.shape[1], v_TKC.shape[1]
        q_TKGC = spread(qk_TJC[:, :num_heads], num_keys)
        k_TKGC = spread(qk_TJC[:, num_heads:], num_keys)
        seen_TKGC = q_TKGC.new_empty(q_TKGC.shape)
        tapes = []
        for lanes in self._lanes:
            q_BQC = fill(lanes, q_TKGC, turn_q)
            k_BMC = fill(lanes, k_TKGC, turn_k)
            v_BMC = fill(lanes, spread(v_TKC, num_keys), copy)
            size = lanes.num_weights(num_heads, window) * v_BMC.element_size()
            kept: list[Tensor] | None = [] if size <= self._room else None
            self._room -= 0 if kept is None else size
            out_BQC = lanes.forward(q_BQC, k_BMC, v_BMC, window, kept)
            take(lanes, out_BQC, seen_TKGC, copy)
            tapes.append(_LaneTape(q_BQC, k_BMC, v_BMC, kept))
        return seen_TKGC.flatten(1), tapes

    def backward(
        self, dseen_TD: Tensor, tape: AttentionTape, window: int, rope: int = 0
    ) -> Gradients:
        assert isinstance(tape, list), "made by `forward`"
        turn_q_back, turn_k_back = (partial(_turn, angles) for angles in self._turns_back[rope])
        width = tape[0].q_BQC.shape[-1]
        num_keys = self._lanes[0].num_keys(tape[0].k_BMC)
        dseen_TKGC = torch.unflatten(dseen_TD, 1, (num_keys, -1, width))
        dq_TKGC = torch.empty_like(dseen_TKGC, memory_format=torch.contiguous_format)
        dk_TKGC, dv_TKGC = (dq_TKGC.new_empty(len(dseen_TD), num_keys, 1, width) for _ in "kv")
        for lanes, (q_BQC, k_BMC, v_BMC, kept) in zip(self._lanes, tape, strict=True):
            dout_BQC = fill(lanes, dseen_TKGC, copy)
            found = lanes.backward(dout_BQC, q_BQC, k_BMC, v_BMC, window, kept)
            take(lanes, found[0], dq_TKGC, turn_q_back)
            take(lanes, found[1], dk_TKGC, turn_k_back)
            take(lanes, found[2], dv_TKGC, copy)
        return Gradients(dq_TKGC.flatten(1, 2), dk_TKGC.flatten(1, 2), dv_TKGC.flatten(1, 2))


def _turn(angles: Angles, out_NLKGC: Tensor, x_NLKGC: Tensor, rows: slice) -> None:
    cos, sin = (each[rows].view(*x_NLKGC.shape[:2], 1, 1, -1) for each in angles)
    apply_rope(x_NLKGC, cos, sin, out_NLKGC)


class _ByTorch:
    def __init__(self, lengths: list[int], ropes: Sequence[Angles], scale: float) -> None:
        self._lengths, self._ropes, self._scale = lengths, ropes, scale

    def forward(
        self, qk_TJC: Tensor, v_TKC: Tensor, window: int, rope: int = 0
    ) -> tuple[Tensor, AttentionTape]:
        sizes = [qk_TJC.shape[1] - v_TKC.shape[1], v_TKC.shape[1]]
        q_THC, k_TKC = apply_rope(qk_TJC, *self._ropes[rope]).split_with_sizes(sizes, dim=1)
        seen_TD = attend_by_torch(q_THC, k_TKC, v_TKC, self._lengths, window, self._scale)
        # A copy, or the tape would hold queries and keys a second time.
        return seen_TD, _TurnedTape(q_THC, k_TKC, v_TKC.contiguous())

    def backward(
        self, dseen_TD: Tensor, tape: AttentionTape, window: int, rope: int = 0
    ) -> Gradients:
        assert isinstance(tape, _TurnedTape), "made by `forward`"
        q_THC, k_TKC, v_TKC = (x.detach().requires_grad_(True) for x in tape)
        with torch.enable_grad():
            seen_TD = attend_by_torch(q_THC, k_TKC, v_TKC, self._lengths, window, self._scale)
        dq_THC, dk_TKC, dv_TKC = torch.autograd.grad(seen_TD, (q_THC, k_TKC, v_TKC), dseen_TD)
        back = self._ropes[rope].back()
        return Gradients(apply_rope(dq_THC, *back), apply_rope(dk_TKC, *back), dv_TKC)
