"""The rows of one step for the kernels: tokens, positions, where each is stored, what it sees.

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
"""Of a prompt: enough that blocks are read for many queries, few enough to be shared out."""


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
            place = sequence.num_tokens - 1
            self._add(np.array(sequence.tokens[-1:]), place, np.array(sequence.blocks))

    def add_part(self, part: PrefillChunk) -> None:
        """The rows of a part of a prompt; one without blocks is given spare ones for the step."""
        blocks = np.array(part.stem.blocks)
        if not len(blocks):
            count = blocks_for(part.end)
            blocks = ~np.arange(self.num_spare, self.num_spare + count)
            self.num_spare += count
        self._add(part.stem.tokens[part.start : part.end], part.start, blocks)

    def _add(self, tokens: np.ndarray, start: int, blocks: np.ndarray) -> None:
        count = len(tokens)
        place = np.arange(start, start + count)
        self._tokens.append(tokens)
        self._positions.append(place)
        self._blocks.append(blocks[place // BLOCK_TOKENS])
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
        """Where in its text every row is."""
        return np.concatenate(self._positions).astype(np.int64)

    def places(self) -> np.ndarray:
        """The block of every row and its place in it."""
        blocks = np.concatenate(self._blocks)
        return np.stack([blocks, self.positions() % BLOCK_TOKENS], axis=1).astype(np.int32)

    def tables(self) -> np.ndarray:
        """The blocks of all texts."""
        return np.concatenate(self._tables).astype(np.int32)

    def chunks(self) -> np.ndarray:
        """Rows that are computed together, the longest work first."""
        work = [-rows * (position + rows) for _, rows, position, _ in self._chunks]
        return np.array(self._chunks, np.int32)[np.argsort(work, kind="stable")]


class KernelStep:
    """How the rows of a step find their places in the cache, and what they see there."""

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
        self._positions, self._places = rows.positions(), rows.places()
        self._tables, self._chunks = rows.tables(), rows.chunks()
        block_shape = rows.num_spare, spec.num_kv_heads, spec.head_dim, BLOCK_TOKENS
        # Blocks for one layer: no other ever looks at what a layer has left there.
        self._spare_keys, self._spare_values = torch.empty(block_shape), torch.empty(block_shape)
        kernels.reserve(int((self._chunks[:, 1] + self._chunks[:, 2]).max()))
        shape = {
            "heads": spec.num_heads,
            "key_heads": spec.num_kv_heads,
            "width": spec.head_dim,
            "spare_keys": self._spare_keys.data_ptr(),
            "spare_values": self._spare_values.data_ptr(),
        }
        self._turn = RotateArgs(
            positions=self._positions.ctypes.data,
            places=self._places.ctypes.data,
            rows=rows.num_rows,
            norm_is_whole=spec.qk_norm == "projection",
            eps=spec.norm.eps,
            query_scale=spec.query_scale,
            **shape,
        )
        has_many_chunks = len(self._chunks) >= 4 * kernels.num_threads
        self._attention = AttentionArgs(
            tables=self._tables.ctypes.data,
            chunks=self._chunks.ctypes.data,
            num_chunks=len(self._chunks),
            query_stride=(spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim,
            heads_at_once=spec.num_kv_heads if has_many_chunks else 1,
            **shape,
        )

    def turn(
        self, layer: int, qkv: Tensor, norms: tuple[Tensor | None, Tensor | None]
    ) -> RotateArgs:
        """The job to turn queries and keys by their positions and to store keys and values. Good
        until another layer's is asked for, like the other."""
        job = self._turn
        job.qkv = qkv.data_ptr()
        angles = self._ropes[self._layers[layer].rope]
        job.cos, job.sin = angles.cos_PZ.data_ptr(), angles.sin_PZ.data_ptr()
        job.rotated = 2 * angles.cos_PZ.shape[1]
        job.keys, job.values = self._cache.pointers[layer]
        job.query_norm, job.key_norm = (None if x is None else x.data_ptr() for x in norms)
        return job

    def attention(self, layer: int, qkv: Tensor, seen_TX: Tensor) -> AttentionArgs:
        """The job to find what every row sees."""
        job = self._attention
        job.queries, job.seen = qkv.data_ptr(), seen_TX.data_ptr()
        job.keys, job.values = self._cache.pointers[layer]
        job.window = self._layers[layer].window
        return job
