"""LoRA for the kernels: adapters in the layout they want, and which rows of a step have which.

The copy of an adapter is made when it is first sampled from and goes with its weights.

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

from tinkex.engine.lora.adapter import AdapterWeights, LoraGroup, LoraLayout
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
        self._flat = torch.zeros(_copy_floats(weights.layout, groups))
        self.pointers_S2 = np.zeros((len(groups), 2), np.int64)
        start = 0
        for place, group in enumerate(groups):
            pair = weights.pairs.get(group.site)
            if pair is None:
                continue
            a_size, b_size = _place_floats(group, self.rank)
            a = self._flat[start : start + a_size]
            b = self._flat[start + a_size : start + a_size + b_size]
            a.view(pair.a_RD.shape[1], -1)[:, : pair.a_RD.shape[0]] = pair.a_RD.T
            column, b_RO = 0, b.view(self.rank, -1)
            for b_OR in pair.bs_OR:
                torch.mul(b_OR.T, pair.scale, out=b_RO[:, column : column + b_OR.shape[0]])
                column += b_OR.shape[0]
            self.pointers_S2[place] = a.data_ptr(), b.data_ptr()
            start += a_size + b_size


def _place_floats(group: LoraGroup, rank: int) -> tuple[int, int]:
    """How many floats A and B of a place take."""
    in_features = group.targets[0].in_features
    return in_features * _whole(rank * len(group.targets)), rank * b_stride(group)


def _copy_floats(layout: LoraLayout, groups: Sequence[LoraGroup]) -> int:
    sites = {group.site for group in layout.groups}
    return sum(sum(_place_floats(group, layout.rank)) for group in groups if group.site in sites)


def b_stride(group: LoraGroup) -> int:
    """Floats from one row of B to the next: some more than it has, so that they do not all fall on
    the same lines of the processor's cache."""
    return sum(target.out_features for target in group.targets) + _WHOLE


def _whole(count: int) -> int:
    return -(-count // _WHOLE) * _WHOLE


class AdapterCopies:
    """The copies of a base model's adapters. `groups` are the places of all its layers."""

    def __init__(self, groups: Sequence[LoraGroup]) -> None:
        self.groups = groups
        self._copies: WeakKeyDictionary[AdapterWeights, AdapterCopy] = WeakKeyDictionary()

    def of(self, weights: AdapterWeights) -> AdapterCopy:
        """The copy of these weights; made if it is not there."""
        if weights not in self._copies:
            self._copies[weights] = AdapterCopy(weights, self.groups)
        return self._copies[weights]

    def size_bytes(self, layout: LoraLayout) -> int:
        """Memory the copy of such an adapter takes."""
        return 4 * _copy_floats(layout, self.groups)


class RowRuns:
    """Which adapter each row of a step belongs to. Has to outlive the jobs it gives."""

    def __init__(self, num_rows: int, runs: Iterable[Run], copies: AdapterCopies) -> None:
        merged = _merged(runs)
        self._jobs: list[Lora] = []  # one for each place of a layer, used by all layers in turn
        if not merged:
            return
        adapters = list(dict.fromkeys(weights for _, _, weights in merged))
        place_of = {weights: place for place, weights in enumerate(adapters)}
        self._copies = [copies.of(weights) for weights in adapters]
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
