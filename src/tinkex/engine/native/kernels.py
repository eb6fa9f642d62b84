"""The Python interface of the C kernels: tensors in, tensors out.

Each structure here mirrors one of the C sources, field by field. Tensors must be float32 on the CPU
with contiguous rows; callers make sure of that, nothing is checked here.

Shapes: T rows · D hidden · F MLP width.
"""

from __future__ import annotations

import ctypes
from ctypes import Structure, byref, c_float, c_int64, c_void_p

import torch
from torch import Tensor

from tinkex.engine.model.spec import Activation
from tinkex.engine.native.build import FUNCTIONS
from tinkex.engine.sampling.kv_cache import BLOCK_TOKENS, blocks_for

__all__ = ["MAX_PARTS", "AttentionArgs", "Kernels", "Lora", "RotateArgs"]

MAX_PARTS = 3
"""Maximum matrices that are fused on one input: q, k and v."""

_ACTIVATIONS: tuple[Activation, ...] = ("silu", "gelu_tanh")
"""Activations, in the order of the C sources' enumeration."""


class _Team(Structure):
    _fields_ = (
        ("parallel", c_void_p),
        ("threads", c_int64),
        ("scratch", c_void_p),
        ("scratch_floats", c_int64),
    )


class Lora(Structure):
    """The LoRA of one site, for all rows of a step."""

    _fields_ = (
        *((name, c_void_p) for name in ("x", "y", "down", "runs", "run_of", "adapters", "shapes")),
        ("part_ends", c_int64 * MAX_PARTS),
        *((name, c_int64) for name in ("num_parts", "num_runs", "rows", "inputs", "outputs")),
        *((name, c_int64) for name in ("down_stride", "b_stride")),
    )


class _Norm(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("x", "plus", "plus_weight", "weight", "out")),
        *((name, c_int64) for name in ("rows", "width")),
        ("eps", c_float),
        ("lora", c_void_p),
    )


class _Gate(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("gate_up", "out")),
        *((name, c_int64) for name in ("rows", "width", "activation")),
        ("lora", c_void_p),
    )


class RotateArgs(Structure):
    """Queries and keys of a layer to rotate; keys and values to store in the KV cache."""

    _fields_ = (
        *((name, c_void_p) for name in ("qkv", "cos", "sin", "positions", "slots")),
        *((name, c_void_p) for name in ("keys", "values", "spare_keys", "spare_values")),
        *((name, c_void_p) for name in ("query_norm", "key_norm")),
        *((name, c_int64) for name in ("rows", "heads", "kv_heads", "width")),
        *((name, c_int64) for name in ("rotated", "norm_is_whole")),
        *((name, c_float) for name in ("eps", "query_scale")),
        ("lora", c_void_p),
    )


class AttentionArgs(Structure):
    """Queries of a layer and the cache blocks they attend to."""

    _fields_ = (
        *((name, c_void_p) for name in ("queries", "out")),
        *((name, c_void_p) for name in ("keys", "values", "spare_keys", "spare_values")),
        *((name, c_void_p) for name in ("block_tables", "chunks")),
        *((name, c_int64) for name in ("num_chunks", "query_stride")),
        *((name, c_int64) for name in ("heads", "kv_heads", "width", "window", "heads_at_once")),
    )


class Kernels:
    """The compiled functions, run on `num_threads` threads of torch's own team."""

    def __init__(self, library: ctypes.CDLL, parallel: int, num_threads: int) -> None:
        self.num_threads = num_threads
        self._team = _Team(parallel=parallel, threads=num_threads)
        self._at_team = byref(self._team)
        self._scratch = torch.empty(0)
        functions = (library[name] for name in FUNCTIONS)
        self._norm, self._gate, self._rotate, self._attend, self._lora = functions
        self._queries_at_once = c_int64.in_dll(library, "tinkex_queries_at_once").value
        block_tokens = c_int64.in_dll(library, "tinkex_block_tokens").value
        assert block_tokens == BLOCK_TOKENS, "kernels and cache differ in the block size"

    def reserve(self, num_tokens: int) -> None:
        """Gives every thread scratch memory for sequences of up to `num_tokens` tokens."""
        num_floats = self._queries_at_once * blocks_for(num_tokens) * BLOCK_TOKENS
        if num_floats > self._team.scratch_floats:
            self._scratch = torch.empty(self.num_threads * num_floats)
            self._team.scratch = self._scratch.data_ptr()
            self._team.scratch_floats = num_floats

    def norm(
        self,
        x_TD: Tensor,
        plus_TD: Tensor | None,
        weight_D: Tensor | None,
        eps: float,
        lora: Lora | None = None,
        plus_weight_D: Tensor | None = None,
    ) -> Tensor:
        """Adds `plus` and its LoRA to `x` in place; returns the RMSNorm of that sum, or the sum
        itself if there is no weight.

        With a `plus_weight`, `plus` is normalized in the same way before it is added."""
        out_TD = x_TD if weight_D is None else torch.empty_like(x_TD)
        pointers = (_pointer(x) for x in (x_TD, plus_TD, plus_weight_D, weight_D, out_TD))
        self._norm(self._at_team, byref(_Norm(*pointers, *x_TD.shape, eps, _at(lora))))
        return out_TD

    def gate(self, gate_up: Tensor, activation: Activation, lora: Lora | None = None) -> Tensor:
        """`activation(gate) * up`, after the LoRA of both is added."""
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out_TF = gate_up.new_empty(rows, width)
        number = _ACTIVATIONS.index(activation)
        job = _Gate(gate_up.data_ptr(), out_TF.data_ptr(), rows, width, number, _at(lora))
        self._gate(self._at_team, byref(job))
        return out_TF

    def rotate(self, job: RotateArgs, lora: Lora | None = None) -> None:
        """Rotates and stores, after the LoRA of queries, keys and values is added."""
        job.lora = _at(lora)
        self._rotate(self._at_team, byref(job))

    def attend(self, job: AttentionArgs) -> None:
        """Computes the attention output."""
        self._attend(self._at_team, byref(job))

    def begin_lora(self, job: Lora) -> None:
        """Multiplies by A; the next kernel that gets the job multiplies by B and adds that."""
        self._lora(self._at_team, byref(job))


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _at(lora: Lora | None) -> int | None:
    return None if lora is None else ctypes.addressof(lora)
