"""LoRA for the kernels: adapters in the layout they want, and which rows of a step have which.

The copy of an adapter is made when it is first sampled from, and goes with its weights at the
latest.

Shapes: T rows · D features in · O features out · R rank times fused matrices · S places in the
model · A adapters of a step.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from ctypes import c_int64
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from tinkex.engine.lora import AdapterWeights, LoraGroup
from tinkex.engine.native.kernels import MOST_PARTS, Lora

__all__ = ["LAYER_PLACES", "AdapterCopies", "RowRuns", "Run"]

LAYER_PLACES = 4
"""Places of a layer that LoRA can be at, alike in all: q, k and v; out; gate and up; down."""

_WHOLE = 16  # floats: rows of matrices are made of whole vectors, whatever the machine's

Run = tuple[int, int, AdapterWeights | None]
"""Rows `start..end`, and whose they are."""


class AdapterCopy:
    """A of every place as [D, R] and B as [all O, rank] turned around, the scale in it."""

    def __init__(self, weights: AdapterWeights, groups: Sequence[LoraGroup]) -> None:
        self.rank = weights.layout.rank
        self.last_used = 0
        found = [weights.pairs.get(group.site) for group in groups]
        sizes = [
            (group.targets[0].in_features * _whole(self.rank * len(group.targets)),
             self.rank * b_stride(group))
            if pair is not None else (0, 0)
            for group, pair in zip(groups, found, strict=True)
        ]  # fmt: skip
        self._flat = torch.zeros(sum(a + b for a, b in sizes))
        self.pointers_S2 = np.zeros((len(groups), 2), np.int64)
        start = 0
        for place, pair in enumerate(found):
            if pair is None:
                continue
            middle, end = start + sizes[place][0], start + sum(sizes[place])
            a, b = self._flat[start:middle], self._flat[middle:end]
            a.view(pair.a_RD.shape[1], -1)[:, : pair.a_RD.shape[0]] = pair.a_RD.T
            column, b_RO = 0, b.view(self.rank, -1)
            for b_OR in pair.bs_OR:
                torch.mul(b_OR.T, pair.scale, out=b_RO[:, column : column + b_OR.shape[0]])
                column += b_OR.shape[0]
            self.pointers_S2[place] = a.data_ptr(), b.data_ptr()
            start = end

    @property
    def size_bytes(self) -> int:
        """Memory it takes."""
        return self._flat.numel() * self._flat.element_size()


def b_stride(group: LoraGroup) -> int:
    """Floats from one row of B to the next: some more than it has, so that they do not all fall on
    the same lines of the processor's cache."""
    return sum(target.out_features for target in group.targets) + _WHOLE


def _whole(count: int) -> int:
    return -(-count // _WHOLE) * _WHOLE


class AdapterCopies:
    """Copies of the adapters used last, as many as fit `max_bytes`; those of a step always do."""

    def __init__(self, groups: Sequence[LoraGroup], max_bytes: int) -> None:
        self.groups, self._max_bytes = groups, max_bytes
        self._copies: WeakKeyDictionary[AdapterWeights, AdapterCopy] = WeakKeyDictionary()
        self._turns = itertools.count(1)

    def of(self, adapters: Sequence[AdapterWeights]) -> list[AdapterCopy]:
        """The copies of these; made if they are not there."""
        turn, found = next(self._turns), []
        for weights in adapters:
            if weights not in self._copies:
                self._copies[weights] = AdapterCopy(weights, self.groups)
            self._copies[weights].last_used = turn
            found.append(self._copies[weights])
        self._drop_others(turn)
        return found

    def _drop_others(self, turn: int) -> None:
        """Drops those not used for longest while they are too many."""
        size = sum(copy.size_bytes for copy in self._copies.values())
        for weights, copy in sorted(self._copies.items(), key=lambda item: item[1].last_used):
            if size <= self._max_bytes or copy.last_used == turn:
                return
            size -= copy.size_bytes
            del self._copies[weights]


class RowRuns:
    """Which adapter each row of a step belongs to. Has to outlive the jobs it gives."""

    def __init__(self, num_rows: int, runs: Iterable[Run], copies: AdapterCopies) -> None:
        merged = _merged(runs)
        self._jobs: list[Lora] = []  # one for each place of a layer, used by all layers in turn
        if not merged:
            return
        adapters = list(dict.fromkeys(weights for _, _, weights in merged))
        place_of = {weights: place for place, weights in enumerate(adapters)}
        self._copies = copies.of(adapters)
        self._pointers_SA2 = np.stack([copy.pointers_S2 for copy in self._copies], axis=1)
        self._first_pointer = self._pointers_SA2.ctypes.data
        self._runs = np.array([(a, b, place_of[w]) for a, b, w in merged], np.int32)
        self._run_of = np.full(num_rows, -1, np.int32)
        for place, (start, end, _) in enumerate(merged):
            self._run_of[start:end] = place
        ranks = [copy.rank for copy in self._copies]
        self._shapes = [
            np.array([(rank, _whole(rank * parts)) for rank in ranks], np.int64)
            for parts in range(1, MOST_PARTS + 1)
        ]
        self._down = torch.empty(num_rows, _whole(max(ranks) * MOST_PARTS))
        self._jobs = [self._job(group) for group in copies.groups[:LAYER_PLACES]]

    def at(self, place: int, x_TD: Tensor, y_TO: Tensor) -> Lora | None:
        """The LoRA of this place, to be added to `y`; None if no row has any. Good until it is
        asked for that of the same place in another layer."""
        if not self._jobs:
            return None
        job = self._jobs[place % LAYER_PLACES]
        job.x, job.y = x_TD.data_ptr(), y_TO.data_ptr()
        job.adapters = self._first_pointer + place * self._pointers_SA2.strides[0]
        return job

    def _job(self, group: LoraGroup) -> Lora:
        outputs = [target.out_features for target in group.targets]
        return Lora(
            down=self._down.data_ptr(),
            runs=self._runs.ctypes.data,
            run_of=self._run_of.ctypes.data,
            shapes=self._shapes[len(outputs) - 1].ctypes.data,
            part_ends=(c_int64 * MOST_PARTS)(*itertools.accumulate(outputs)),
            num_parts=len(outputs),
            num_runs=len(self._runs),
            rows=len(self._run_of),
            inputs=group.targets[0].in_features,
            outputs=sum(outputs),
            down_stride=self._down.shape[1],
            b_stride=b_stride(group),
        )


def _merged(runs: Iterable[Run]) -> list[tuple[int, int, AdapterWeights]]:
    """Runs of adapters; neighbours of one become one."""
    merged: list[tuple[int, int, AdapterWeights]] = []
    for start, end, weights in runs:
        if weights is None or start == end:
            continue
        if merged and merged[-1][1:] == (start, weights):
            start = merged.pop()[0]
        merged.append((start, end, weights))
    return merged
