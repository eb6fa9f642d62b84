"""One decoder layer: attention and MLP with their norms and residuals, forward and backward.

The forward keeps on a tape what the backward cannot recompute cheaply: inputs and outputs of the
norms, queries, keys and values, the attention output, and gate and up. Norms and activations are
recomputed.

Shapes: T tokens of the batch · D hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple, Protocol

from torch import Tensor

from tinkex.engine.attention.training import TrainingAttention
from tinkex.engine.lora.adapter import LoraBatch
from tinkex.engine.model.attention_block import AttentionBlock, AttentionBlockTape
from tinkex.engine.model.experts_block import ExpertsBlock
from tinkex.engine.model.mlp_block import MlpBlock
from tinkex.engine.model.spec import DecoderSpec
from tinkex.engine.model.weights import LayerWeights, MlpWeights
from tinkex.engine.ops.layer_ops import rms_norm, rms_norm_backward, rms_scaled, rms_unit

__all__ = ["Layer", "LayerTape"]


class _FeedForward(Protocol):
    """An MLP or a mixture of experts, without its norms and residual."""

    def forward(
        self, x_TD: Tensor, lora: LoraBatch, plus_TD: Tensor | None
    ) -> tuple[Tensor, object]:
        """Returns the output for `x`, added to `plus` if given, and the tape."""
        ...

    def backward(
        self, dy_TD: Tensor, x_TD: Callable[[], Tensor], tape: object, lora: LoraBatch
    ) -> Tensor:
        """Returns the gradient by `x`, which is recomputed when it is needed."""
        ...


class LayerTape(NamedTuple):
    """Tensors that a layer's forward keeps for its backward."""

    attn_norms: _NormTape
    attention: AttentionBlockTape
    mlp_norms: _NormTape
    mlp: object


class Layer:
    """A frozen layer of a decoder."""

    def __init__(self, index: int, spec: DecoderSpec, weights: LayerWeights) -> None:
        self._attention = AttentionBlock(index, spec, weights)
        self._mlp = _feed_forward(index, spec, weights)
        eps = spec.norm.eps
        self._attn_norms = _Norms(weights.before_attn_D, weights.after_attn_D, eps)
        self._mlp_norms = _Norms(weights.before_mlp_D, weights.after_mlp_D, eps)

    def forward(
        self, x_TD: Tensor, attention: TrainingAttention, lora: LoraBatch
    ) -> tuple[Tensor, LayerTape]:
        """Returns the layer's output and the tape for its backward."""
        norms = self._attn_norms
        normed_TD, plus_TD, entry = norms.enter(x_TD)
        y_TD, attention_tape = self._attention.forward(normed_TD, attention, lora, plus_TD)
        x_TD, attn_norm_tape = norms.leave(y_TD, entry)
        norms = self._mlp_norms
        normed_TD, plus_TD, entry = norms.enter(x_TD)
        y_TD, mlp_tape = self._mlp.forward(normed_TD, lora, plus_TD)
        x_TD, mlp_norm_tape = norms.leave(y_TD, entry)
        return x_TD, LayerTape(attn_norm_tape, attention_tape, mlp_norm_tape, mlp_tape)

    def backward(
        self, dy_TD: Tensor, tape: LayerTape, attention: TrainingAttention, lora: LoraBatch
    ) -> Tensor:
        """Returns the gradient by the layer's input; adds LoRA's to those of the pairs."""
        norms = _NormsBackward(self._mlp_norms, tape.mlp_norms, dy_TD)
        dnormed_TD = self._mlp.backward(norms.dinner_TD, norms.normed, tape.mlp, lora)
        dy_TD = norms.gradient(dnormed_TD)
        norms = _NormsBackward(self._attn_norms, tape.attn_norms, dy_TD)
        dnormed_TD = self._attention.backward(
            norms.dinner_TD, norms.normed, tape.attention, attention, lora
        )
        return norms.gradient(dnormed_TD)


def _feed_forward(index: int, spec: DecoderSpec, weights: LayerWeights) -> _FeedForward:
    if isinstance(weights.mlp, MlpWeights):
        return MlpBlock(index, spec, weights.mlp)
    return ExpertsBlock(index, spec, weights.mlp)


class _Entry(NamedTuple):
    x_TD: Tensor
    inverse_T1: Tensor | None  # of the norm on the input, if there is one


class _NormTape(NamedTuple):
    entry: _Entry
    y_TD: Tensor | None  # before the norm on the output, if there is one
    y_inverse_T1: Tensor | None


class _Norms(NamedTuple):
    """`x + after(inner(before(x)))`: the norms of attention or MLP; each may be missing."""

    before_D: Tensor | None
    after_D: Tensor | None
    eps: float

    def enter(self, x_TD: Tensor) -> tuple[Tensor, Tensor | None, _Entry]:
        """Returns the input of the inner block and the residual that the block adds to its output;
        no residual if a norm follows the block."""
        plus_TD = x_TD if self.after_D is None else None
        if self.before_D is None:
            return x_TD, plus_TD, _Entry(x_TD, None)
        normed_TD, inverse_T1 = rms_norm(x_TD, self.before_D, self.eps)
        return normed_TD, plus_TD, _Entry(x_TD, inverse_T1)

    def leave(self, y_TD: Tensor, entry: _Entry) -> tuple[Tensor, _NormTape]:
        """Returns the output, residual added, and the tape."""
        if self.after_D is None:
            return y_TD, _NormTape(entry, None, None)
        normed_TD, inverse_T1 = rms_norm(y_TD, self.after_D, self.eps)
        return normed_TD.add_(entry.x_TD), _NormTape(entry, y_TD, inverse_T1)


class _NormsBackward:
    """The backward of norms and residual around attention or MLP."""

    def __init__(self, norms: _Norms, tape: _NormTape, dy_TD: Tensor) -> None:
        self._weight_D, self._entry = norms.before_D, tape.entry
        self._dy_TD = self.dinner_TD = dy_TD
        if norms.after_D is not None and tape.y_TD is not None and tape.y_inverse_T1 is not None:
            unit_TD = rms_unit(tape.y_TD, tape.y_inverse_T1)
            # A copy: the residual needs dy too.
            self.dinner_TD = rms_norm_backward(
                dy_TD.clone(), unit_TD, tape.y_inverse_T1, norms.after_D
            )

    @cached_property
    def _unit_TD(self) -> Tensor:
        assert self._entry.inverse_T1 is not None, "only used if there is a norm"
        return rms_unit(self._entry.x_TD, self._entry.inverse_T1)

    def normed(self) -> Tensor:
        """The block's input after the norm before it."""
        if self._weight_D is None:
            return self._entry.x_TD
        return rms_scaled(self._unit_TD, self._weight_D, self._dy_TD.dtype)

    def gradient(self, dnormed_TD: Tensor) -> Tensor:
        """Returns the gradient by the input of the first norm. Overwrites `dnormed`."""
        inverse_T1 = self._entry.inverse_T1
        if self._weight_D is None or inverse_T1 is None:
            return dnormed_TD.add_(self._dy_TD)
        unit_TD = self._unit_TD
        return rms_norm_backward(dnormed_TD, unit_TD, inverse_T1, self._weight_D, self._dy_TD)
