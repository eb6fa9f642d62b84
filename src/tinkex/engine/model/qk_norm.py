"""The norms of queries and keys, forward and backward: of each head, or of all heads together.

Shapes: T tokens of the batch · H heads · K key/value heads · J = H + K · C features of a head.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tinkex.engine.model.spec import DecoderSpec
from tinkex.engine.model.weights import LayerWeights
from tinkex.engine.ops.layer_ops import rms_norm, rms_norm_backward, rms_unit

__all__ = ["QkNormTape", "QkNorms", "qk_norms"]


class QkNormTape(NamedTuple):
    """The normalized queries and keys, and the scales by which they were normalized."""

    qk_TJC: Tensor
    inverses: tuple[Tensor, Tensor]


class QkNorms:
    """The query and key norms of one layer."""

    def __init__(self, spec: DecoderSpec, q_norm_C: Tensor, k_norm_C: Tensor) -> None:
        self._num_heads, self._eps = spec.num_heads, spec.norm.eps
        self._is_whole = spec.qk_norm == "projection"
        self._weights = q_norm_C, k_norm_C
        if not self._is_whole:  # one call for both
            heads = spec.num_heads, spec.num_kv_heads
            rows = [w.expand(n, -1) for w, n in zip(self._weights, heads, strict=True)]
            self._weight_JC = torch.cat(rows)

    def forward(self, qk_TJC: Tensor) -> tuple[Tensor, QkNormTape]:
        """Returns queries and keys after their norms, and the tape."""
        n = self._num_heads
        if not self._is_whole:
            normed_TJC, inverse_TJ1 = rms_norm(qk_TJC, self._weight_JC, self._eps)
            return normed_TJC, QkNormTape(qk_TJC, (inverse_TJ1[:, :n], inverse_TJ1[:, n:]))
        halves = (qk_TJC[:, :n].flatten(1), qk_TJC[:, n:].flatten(1))
        q, k = (rms_norm(x, w, self._eps) for x, w in zip(halves, self._weights, strict=True))
        normed = torch.cat([q[0], k[0]], dim=1).view(qk_TJC.shape)
        return normed, QkNormTape(qk_TJC, (q[1], k[1]))

    def backward(self, dq_THC: Tensor, dk_TKC: Tensor, tape: QkNormTape) -> tuple[Tensor, Tensor]:
        """Returns the gradients by queries and keys before their norms."""
        n = self._num_heads
        halves = tape.qk_TJC[:, :n], tape.qk_TJC[:, n:]
        weights = self._weights
        dx = [dq_THC, dk_TKC]
        for i, (x, inverse) in enumerate(zip(halves, tape.inverses, strict=True)):
            if self._is_whole:
                unit = rms_unit(x.flatten(1), inverse)
                dx[i] = rms_norm_backward(dx[i].flatten(1), unit, inverse, weights[i]).view(x.shape)
            else:
                dx[i] = rms_norm_backward(dx[i], rms_unit(x, inverse), inverse, weights[i])
        return dx[0], dx[1]


def qk_norms(spec: DecoderSpec, weights: LayerWeights) -> QkNorms | None:
    """Returns the norms of a layer's queries and keys; None if the layer has none."""
    if weights.q_norm_C is None or weights.k_norm_C is None:
        return None
    return QkNorms(spec, weights.q_norm_C, weights.k_norm_C)
