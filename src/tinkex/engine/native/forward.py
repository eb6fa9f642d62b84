"""The lean decoder's forward by compiled kernels, for sampling steps where kernels are available.

The same function as `sampling.forward`. oneDNN computes the products with frozen weights; each step
between two of them is one kernel, which also adds the LoRA of its rows.

Shapes: T rows · D hidden · X heads times their features · N output rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tinkex.engine.model.decoder import Decoder
from tinkex.engine.model.weights import MlpWeights
from tinkex.engine.native.adapters import LAYER_SITES, AdapterCopies, RowRuns, Run
from tinkex.engine.native.kernels import Kernels, Lora
from tinkex.engine.native.step import KernelStep
from tinkex.engine.ops.linear import FrozenLinear

__all__ = ["KernelOutputRows", "NativePass"]

_QKV, _OUT, _GATE_UP, _DOWN = range(LAYER_SITES)
"""The LoRA sites of a layer, in the order of the decoder's groups."""


@dataclass(frozen=True, slots=True)
class KernelOutputRows:
    """The rows whose last hidden state is needed, and their adapters."""

    row_N: Tensor
    runs: list[Run]


class NativePass:
    """Runs rows through a decoder; fastest with packed weights."""

    def __init__(self, decoder: Decoder, kernels: Kernels, copies: AdapterCopies) -> None:
        self._kernels = kernels
        self.spec = decoder.spec
        self._weights = decoder.weights
        self._copies = copies
        self.ropes = decoder.rope_tables

    def hidden(
        self,
        tokens_T: Tensor,
        step: KernelStep,
        runs: list[Run],
        wanted: KernelOutputRows | None = None,
    ) -> Tensor:
        """The last hidden states after the final norm, of all rows or of the `wanted` ones."""
        kernels, spec, eps = self._kernels, self.spec, self.spec.norm.eps
        rows = RowRuns(step.num_rows, runs, self._copies)
        x_TD = self._weights.embed(tokens_T)
        plus_TD, lora, after_D = None, None, None
        last = len(self._weights.layers) - 1
        for index, layer in enumerate(self._weights.layers):
            normed_TD = kernels.norm(x_TD, plus_TD, layer.before_attn_D, eps, lora, after_D)
            qkv, lora = self._product(layer.qkv, normed_TD, rows, index, _QKV)
            kernels.rotate(step.rotate(index, qkv, (layer.q_norm_C, layer.k_norm_C)), lora)
            attn_out_TX = qkv.new_empty(len(qkv), spec.query_width)
            kernels.attend(step.attention(index, qkv, attn_out_TX))
            if index == last and wanted is not None:
                x_TD, attn_out_TX = (x.index_select(0, wanted.row_N) for x in (x_TD, attn_out_TX))
                rows = RowRuns(len(x_TD), wanted.runs, self._copies)
            out_TD, lora = self._product(layer.out, attn_out_TX, rows, index, _OUT)
            normed_TD = kernels.norm(
                x_TD, out_TD, layer.before_mlp_D, eps, lora, layer.after_attn_D
            )
            assert isinstance(layer.mlp, MlpWeights), "others are refused by `why_not_native`"
            gate_up, lora = self._product(layer.mlp.gate_up, normed_TD, rows, index, _GATE_UP)
            act_TF = kernels.gate(gate_up, spec.activation, lora)
            plus_TD, lora = self._product(layer.mlp.down, act_TF, rows, index, _DOWN)
            after_D = layer.after_mlp_D
        return kernels.norm(x_TD, plus_TD, self._weights.norm_D, eps, lora, after_D)

    def _product(
        self, linear: FrozenLinear, x_TD: Tensor, rows: RowRuns, layer: int, site: int
    ) -> tuple[Tensor, Lora | None]:
        """The product with a frozen weight, and the LoRA that the next kernel has to add to it."""
        y_TO = linear.forward(x_TD)
        lora = rows.at(LAYER_SITES * layer + site, x_TD, y_TO)
        if lora is not None:
            self._kernels.begin_lora(lora)
        return y_TO, lora
