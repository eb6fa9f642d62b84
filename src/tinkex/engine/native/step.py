"""The rows of one step for the kernels: tokens, positions, cache slots, block tables.

Shapes: T rows · K key/value heads · C features of a head · W tokens of a block.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tinkex.engine.model.rope import RopeTable
from tinkex.engine.model.spec import DecoderSpec
from tinkex.engine.native.kernels import AttentionArgs, Kernels, RotateArgs
from tinkex.engine.sampling.kv_cache import BLOCK_TOKENS, WASTE_BLOCK, KvCache, blocks_for
from tinkex.engine.sampling.state import PrefillChunk, RunningSequence

__all__ = ["KernelStep", "StepList"]

_CHUNK_ROWS = 8
"""Rows of a prompt per chunk: many queries per block that is read, and enough chunks for all
threads."""


class StepList:
    """The rows of a step being put together."""

    def __init__(self) -> None:
        self.num_rows = self.num_spare = 0
        self._tokens: list[np.ndarray] = []
        self._positions: list[np.ndarray] = []
        self._blocks: list[np.ndarray] = []
        self._tables: list[np.ndarray] = []
        self._num_tabled = 0
        self._chunks: list[tuple[int, int, int, int]] = []

    def add_sequence(self, sequence: RunningSequence | None) -> None:
        """A row for the newest token of the sequence, or a padding row."""
        if sequence is None:
            self._add(np.zeros(1, np.int64), 0, np.array([WASTE_BLOCK]))
        else:
            position = sequence.num_tokens - 1
            self._add(np.array(sequence.tokens[-1:]), position, np.array(sequence.blocks))

    def add_part(self, part: PrefillChunk) -> None:
        """The rows of a chunk of a prompt; without blocks of its own it gets spare ones for the
        step."""
        blocks = np.array(part.prefix.blocks)
        if not len(blocks):
            count = blocks_for(part.end)
            blocks = ~np.arange(self.num_spare, self.num_spare + count)
            self.num_spare += count
        self._add(part.prefix.tokens[part.start : part.end], part.start, blocks)

    def _add(self, tokens: np.ndarray, start: int, blocks: np.ndarray) -> None:
        count = len(tokens)
        positions = np.arange(start, start + count)
        self._tokens.append(tokens)
        self._positions.append(positions)
        self._blocks.append(blocks[positions // BLOCK_TOKENS])
        self._tables.append(blocks)
        for first in range(0, count, _CHUNK_ROWS):
            rows = min(_CHUNK_ROWS, count - first)
            self._chunks.append((self.num_rows + first, rows, start + first, self._num_tabled))
        self._num_tabled += len(blocks)
        self.num_rows += count

    def tokens(self) -> Tensor:
        """The token of every row."""
        return torch.from_numpy(np.concatenate(self._tokens).astype(np.int64))

    def positions(self) -> np.ndarray:
        """The position of every row in its sequence."""
        return np.concatenate(self._positions).astype(np.int64)

    def slots(self) -> np.ndarray:
        """The block of every row and its offset in it."""
        blocks = np.concatenate(self._blocks)
        return np.stack([blocks, self.positions() % BLOCK_TOKENS], axis=1).astype(np.int32)

    def block_tables(self) -> np.ndarray:
        """The block tables of all sequences, end to end."""
        return np.concatenate(self._tables).astype(np.int32)

    def chunks(self) -> np.ndarray:
        """Rows that are computed together, the most expensive first."""
        work = [-rows * (position + rows) for _, rows, position, _ in self._chunks]
        return np.array(self._chunks, np.int32)[np.argsort(work, kind="stable")]


class KernelStep:
    """The arguments of the kernels for the rows of a step."""

    def __init__(
        self,
        rows: StepList,
        cache: KvCache,
        spec: DecoderSpec,
        ropes: Sequence[RopeTable],
        kernels: Kernels,
    ) -> None:
        self.num_rows = rows.num_rows
        self._cache, self._layers, self._ropes = cache, spec.layers, ropes
        self._positions, self._slots = rows.positions(), rows.slots()
        self._block_tables, self._chunks = rows.block_tables(), rows.chunks()
        block_shape = rows.num_spare, spec.num_kv_heads, spec.head_dim, BLOCK_TOKENS
        # Memory for one layer, used by all in turn: no layer reads what another wrote there.
        self._spare_keys, self._spare_values = torch.empty(block_shape), torch.empty(block_shape)
        kernels.reserve(int((self._chunks[:, 1] + self._chunks[:, 2]).max()))
        shape = {
            "heads": spec.num_heads,
            "kv_heads": spec.num_kv_heads,
            "width": spec.head_dim,
            "spare_keys": self._spare_keys.data_ptr(),
            "spare_values": self._spare_values.data_ptr(),
        }
        self._rotate = RotateArgs(
            positions=self._positions.ctypes.data,
            slots=self._slots.ctypes.data,
            rows=rows.num_rows,
            norm_is_whole=spec.qk_norm == "projection",
            eps=spec.norm.eps,
            query_scale=spec.query_scale,
            **shape,
        )
        has_many_chunks = len(self._chunks) >= 4 * kernels.num_threads
        self._attention = AttentionArgs(
            block_tables=self._block_tables.ctypes.data,
            chunks=self._chunks.ctypes.data,
            num_chunks=len(self._chunks),
            query_stride=(spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim,
            heads_at_once=spec.num_kv_heads if has_many_chunks else 1,
            **shape,
        )

    def rotate(
        self, layer: int, qkv: Tensor, norms: tuple[Tensor | None, Tensor | None]
    ) -> RotateArgs:
        """The job to rotate queries and keys and to store keys and values. Valid until the next
        call, as is that of `attention`."""
        job = self._rotate
        job.qkv = qkv.data_ptr()
        angles = self._ropes[self._layers[layer].rope]
        job.cos, job.sin = angles.cos_PZ.data_ptr(), angles.sin_PZ.data_ptr()
        job.rotated = 2 * angles.cos_PZ.shape[1]
        job.keys, job.values = self._cache.pointers[layer]
        job.query_norm, job.key_norm = (None if x is None else x.data_ptr() for x in norms)
        return job

    def attention(self, layer: int, qkv: Tensor, attn_out_TX: Tensor) -> AttentionArgs:
        """The job to compute the attention output of every row."""
        job = self._attention
        job.queries, job.out = qkv.data_ptr(), attn_out_TX.data_ptr()
        job.keys, job.values = self._cache.pointers[layer]
        job.window = self._layers[layer].window
        return job
