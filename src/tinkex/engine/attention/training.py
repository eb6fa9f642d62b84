"""The attention of a training pass: forward and backward, with the rotation (RoPE) of queries and
keys.

On a CPU queries and keys are rotated as they are copied into padded groups, and their gradients as
they are copied back, so that rotation needs no copy of its own. The attention probabilities are
kept for the backward up to a limit in bytes, and computed again beyond it. Elsewhere torch's
attention and autograd are used.

Shapes: T tokens of all sequences, packed · H heads · K key/value heads · G = H / K query heads per
key/value head · J = H + K · C features of a head · B batch of a padded group · Q its rows of
queries · M its keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from tinkex.engine.attention.cpu import (
    copy_rows,
    group_by_kv_head,
    pack_sequences,
    pad_rows,
    unpad_rows,
)
from tinkex.engine.attention.packed import attend_by_torch
from tinkex.engine.ops.layer_ops import Angles, apply_rope

__all__ = ["KEPT_BYTES", "AttentionTape", "Gradients", "TrainingAttention", "training_attention"]

KEPT_BYTES = 256 * 2**20
"""Memory for the attention probabilities of all layers of a pass."""


class Gradients(NamedTuple):
    """The gradients by queries and keys before their rotation, and by values."""

    q_THC: Tensor
    k_TKC: Tensor
    v_TKC: Tensor


class _PaddedTape(NamedTuple):
    q_BQC: Tensor
    k_BMC: Tensor
    v_BMC: Tensor
    kept_probs: list[Tensor] | None


class _RotatedTape(NamedTuple):
    q_THC: Tensor
    k_TKC: Tensor
    v_TKC: Tensor


AttentionTape = list[_PaddedTape] | _RotatedTape
"""Tensors that a layer's attention keeps for its backward."""


class TrainingAttention(Protocol):
    """Whole sequences, one after the other, each attending to itself alone; for one pass."""

    def forward(
        self, qk_TJC: Tensor, v_TKC: Tensor, window: int, rope: int = 0
    ) -> tuple[Tensor, AttentionTape]:
        """The attention output, [T, H * C], and the tape. `window` 0 means full causal attention,
        `rope` is the index of the angles by which queries and keys are rotated."""
        ...

    def backward(
        self, dattn_out_TD: Tensor, tape: AttentionTape, window: int, rope: int = 0
    ) -> Gradients:
        """The gradients by the inputs of `forward`."""
        ...


def training_attention(
    lengths: list[int], ropes: Sequence[Angles], scale: float, kept_bytes: int = KEPT_BYTES
) -> TrainingAttention:
    """The attention of sequences of these lengths, with the angles of each of the model's ropes.
    `scale` multiplies the scores."""
    if ropes[0].cos_T1C.device.type == "cpu":
        return _PaddedAttention(lengths, ropes, scale, kept_bytes)
    return _TorchAttention(lengths, ropes, scale)


class _PaddedAttention:
    def __init__(
        self, lengths: list[int], ropes: Sequence[Angles], scale: float, kept_bytes: int
    ) -> None:
        self._groups = pack_sequences(lengths)
        # Of queries and keys, by rope. Those of keys include the scale of the scores.
        self._angles = [(angles, Angles(*(x * scale for x in angles))) for angles in ropes]
        self._inverse_angles = [(q.inverse(), k.inverse()) for q, k in self._angles]
        self._kept_bytes_left = kept_bytes

    def forward(
        self, qk_TJC: Tensor, v_TKC: Tensor, window: int, rope: int = 0
    ) -> tuple[Tensor, AttentionTape]:
        rotate_q, rotate_k = (partial(_rotate, angles) for angles in self._angles[rope])
        num_heads, num_kv_heads = qk_TJC.shape[1] - v_TKC.shape[1], v_TKC.shape[1]
        q_TKGC = group_by_kv_head(qk_TJC[:, :num_heads], num_kv_heads)
        k_TKGC = group_by_kv_head(qk_TJC[:, num_heads:], num_kv_heads)
        attn_out_TKGC = q_TKGC.new_empty(q_TKGC.shape)
        tapes = []
        for group in self._groups:
            q_BQC = pad_rows(group, q_TKGC, rotate_q)
            k_BMC = pad_rows(group, k_TKGC, rotate_k)
            v_BMC = pad_rows(group, group_by_kv_head(v_TKC, num_kv_heads), copy_rows)
            size = group.num_probabilities(num_heads, window) * v_BMC.element_size()
            kept_probs: list[Tensor] | None = [] if size <= self._kept_bytes_left else None
            self._kept_bytes_left -= 0 if kept_probs is None else size
            out_BQC = group.forward(q_BQC, k_BMC, v_BMC, window, kept_probs)
            unpad_rows(group, out_BQC, attn_out_TKGC, copy_rows)
            tapes.append(_PaddedTape(q_BQC, k_BMC, v_BMC, kept_probs))
        return attn_out_TKGC.flatten(1), tapes

    def backward(
        self, dattn_out_TD: Tensor, tape: AttentionTape, window: int, rope: int = 0
    ) -> Gradients:
        assert isinstance(tape, list), "made by `forward`"
        unrotate_q, unrotate_k = (partial(_rotate, angles) for angles in self._inverse_angles[rope])
        width = tape[0].q_BQC.shape[-1]
        num_kv_heads = self._groups[0].num_kv_heads(tape[0].k_BMC)
        dattn_out_TKGC = torch.unflatten(dattn_out_TD, 1, (num_kv_heads, -1, width))
        dq_TKGC = torch.empty_like(dattn_out_TKGC, memory_format=torch.contiguous_format)
        dk_TKGC, dv_TKGC = (
            dq_TKGC.new_empty(len(dattn_out_TD), num_kv_heads, 1, width) for _ in "kv"
        )
        for group, (q_BQC, k_BMC, v_BMC, kept_probs) in zip(self._groups, tape, strict=True):
            dout_BQC = pad_rows(group, dattn_out_TKGC, copy_rows)
            result = group.backward(dout_BQC, q_BQC, k_BMC, v_BMC, window, kept_probs)
            unpad_rows(group, result[0], dq_TKGC, unrotate_q)
            unpad_rows(group, result[1], dk_TKGC, unrotate_k)
            unpad_rows(group, result[2], dv_TKGC, copy_rows)
        return Gradients(dq_TKGC.flatten(1, 2), dk_TKGC.flatten(1, 2), dv_TKGC.flatten(1, 2))


def _rotate(angles: Angles, out_NLKGC: Tensor, x_NLKGC: Tensor, rows: slice) -> None:
    cos, sin = (each[rows].view(*x_NLKGC.shape[:2], 1, 1, -1) for each in angles)
    apply_rope(x_NLKGC, cos, sin, out_NLKGC)


class _TorchAttention:
    def __init__(self, lengths: list[int], ropes: Sequence[Angles], scale: float) -> None:
        self._lengths, self._ropes, self._scale = lengths, ropes, scale

    def forward(
        self, qk_TJC: Tensor, v_TKC: Tensor, window: int, rope: int = 0
    ) -> tuple[Tensor, AttentionTape]:
        sizes = [qk_TJC.shape[1] - v_TKC.shape[1], v_TKC.shape[1]]
        q_THC, k_TKC = apply_rope(qk_TJC, *self._ropes[rope]).split_with_sizes(sizes, dim=1)
        attn_out_TD = attend_by_torch(q_THC, k_TKC, v_TKC, self._lengths, window, self._scale)
        # A copy: a view would keep the whole of qkv alive.
        return attn_out_TD, _RotatedTape(q_THC, k_TKC, v_TKC.contiguous())

    def backward(
        self, dattn_out_TD: Tensor, tape: AttentionTape, window: int, rope: int = 0
    ) -> Gradients:
        assert isinstance(tape, _RotatedTape), "made by `forward`"
        q_THC, k_TKC, v_TKC = (x.detach().requires_grad_(True) for x in tape)
        with torch.enable_grad():
            attn_out_TD = attend_by_torch(q_THC, k_TKC, v_TKC, self._lengths, window, self._scale)
        dq_THC, dk_TKC, dv_TKC = torch.autograd.grad(
            attn_out_TD, (q_THC, k_TKC, v_TKC), dattn_out_TD
        )
        inverse = self._ropes[rope].inverse()
        return Gradients(apply_rope(dq_THC, *inverse), apply_rope(dk_TKC, *inverse), dv_TKC)
