"""LoRA for the kernels: adapters in the kernels' layout, and the adapter of each row of a step.

The copy of an adapter is made when it is first sampled from and freed with its weights.

Shapes: T rows · D features in · O features out · R rank times fused matrices · S sites of the
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
from tinkex.engine.native.kernels import MAX_PARTS, Lora

__all__ = ["LAYER_SITES", "AdapterCopies", "RowRuns", "Run"]

LAYER_SITES = 4
"""LoRA sites of a layer, the same in all: q, k and v; out; gate and up; down."""

_WHOLE = 16  # floats: rows of matrices are padded to whole vectors of the widest machine

Run = tuple[int, int, AdapterWeights | None]
"""Rows `start..end`, and their adapter."""


class AdapterCopy:
    """A of every site as [D, R], and B, times the scale, as [rank, all O]."""

    def __init__(self, weights: AdapterWeights, groups: Sequence[LoraGroup]) -> None:
        self.rank = weights.layout.rank
        self._flat = torch.zeros(_copy_floats(weights.layout, groups))
        self.pointers_S2 = np.zeros((len(groups), 2), np.int64)
        start = 0
        for site, group in enumerate(groups):
            pair = weights.pairs.get(group.site)
            if pair is None:
                continue
            a_size, b_size = _site_floats(group, self.rank)
            a = self._flat[start : start + a_size]
            b = self._flat[start + a_size : start + a_size + b_size]
            a.view(pair.a_RD.shape[1], -1)[:, : pair.a_RD.shape[0]] = pair.a_RD.T
            column, b_RO = 0, b.view(self.rank, -1)
            for b_OR in pair.bs_OR:
                torch.mul(b_OR.T, pair.scale, out=b_RO[:, column : column + b_OR.shape[0]])
                column += b_OR.shape[0]
            self.pointers_S2[site] = a.data_ptr(), b.data_ptr()
            start += a_size + b_size


def _site_floats(group: LoraGroup, rank: int) -> tuple[int, int]:
    """Returns how many floats A and B of a site take."""
    in_features = group.targets[0].in_features
    return in_features * _whole(rank * len(group.targets)), rank * b_stride(group)


def _copy_floats(layout: LoraLayout, groups: Sequence[LoraGroup]) -> int:
    sites = {group.site for group in layout.groups}
    return sum(sum(_site_floats(group, layout.rank)) for group in groups if group.site in sites)


def b_stride(group: LoraGroup) -> int:
    """Floats from one row of B to the next. Padded: a power of two would map all rows to the same
    sets of the CPU cache."""
    return sum(target.out_features for target in group.targets) + _WHOLE


def _whole(count: int) -> int:
    return -(-count // _WHOLE) * _WHOLE


class AdapterCopies:
    """The copies of a base model's adapters. `groups` are the sites of all its layers."""

    def __init__(self, groups: Sequence[LoraGroup]) -> None:
        self.groups = groups
        self._copies: WeakKeyDictionary[AdapterWeights, AdapterCopy] = WeakKeyDictionary()

    def of(self, weights: AdapterWeights) -> AdapterCopy:
        """Returns the copy of these weights, made on first use."""
        if weights not in self._copies:
            self._copies[weights] = AdapterCopy(weights, self.groups)
        return self._copies[weights]

    def size_bytes(self, layout: LoraLayout) -> int:
        """Returns the bytes of the copy of an adapter with this layout."""
        return 4 * _copy_floats(layout, self.groups)


class RowRuns:
    """Which adapter each row of a step belongs to. Must outlive the jobs that `at` returns."""

    def __init__(self, num_rows: int, runs: Iterable[Run], copies: AdapterCopies) -> None:
        merged = _merged(runs)
        self._jobs: list[Lora] = []  # one per site of a layer, used by all layers in turn
        if not merged:
            return
        adapters = list(dict.fromkeys(weights for _, _, weights in merged))
        index_of = {weights: index for index, weights in enumerate(adapters)}
        self._copies = [copies.of(weights) for weights in adapters]
        self._pointers_SA2 = np.stack([copy.pointers_S2 for copy in self._copies], axis=1)
        self._first_pointer = self._pointers_SA2.ctypes.data
        self._runs = np.array([(a, b, index_of[w]) for a, b, w in merged], np.int32)
        self._run_of = np.full(num_rows, -1, np.int32)
        for index, (start, end, _) in enumerate(merged):
            self._run_of[start:end] = index
        ranks = [copy.rank for copy in self._copies]
        self._shapes = [
            np.array([(rank, _whole(rank * parts)) for rank in ranks], np.int64)
            for parts in range(1, MAX_PARTS + 1)
        ]
        self._down = torch.empty(num_rows, _whole(max(ranks) * MAX_PARTS))
        self._jobs = [self._job(group) for group in copies.groups[:LAYER_SITES]]

    def at(self, site: int, x_TD: Tensor, y_TO: Tensor) -> Lora | None:
        """The LoRA of this site, to be added to `y`; None if no row has any. Valid until the call
        for the same site of another layer."""
        if not self._jobs:
            return None
        job = self._jobs[site % LAYER_SITES]
        job.x, job.y = x_TD.data_ptr(), y_TO.data_ptr()
        job.adapters = self._first_pointer + site * self._pointers_SA2.strides[0]
        return job

    def _job(self, group: LoraGroup) -> Lora:
        outputs = [target.out_features for target in group.targets]
        return Lora(
            down=self._down.data_ptr(),
            runs=self._runs.ctypes.data,
            run_of=self._run_of.ctypes.data,
            shapes=self._shapes[len(outputs) - 1].ctypes.data,
            part_ends=(c_int64 * MAX_PARTS)(*itertools.accumulate(outputs)),
            num_parts=len(outputs),
            num_runs=len(self._runs),
            rows=len(self._run_of),
            inputs=group.targets[0].in_features,
            outputs=sum(outputs),
            down_stride=self._down.shape[1],
            b_stride=b_stride(group),
        )


def _merged(runs: Iterable[Run]) -> list[tuple[int, int, AdapterWeights]]:
    """The runs that have an adapter; adjacent runs of one adapter are joined."""
    merged: list[tuple[int, int, AdapterWeights]] = []
    for start, end, weights in runs:
        if weights is None or start == end:
            continue
        if merged and merged[-1][1:] == (start, weights):
            start = merged.pop()[0]
        merged.append((start, end, weights))
    return merged
