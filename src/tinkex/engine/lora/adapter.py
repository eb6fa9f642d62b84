"""LoRA adapters: where they sit, how their numbers lie in memory, and how they start.

All weights of an adapter are views of one flat float32 tensor, so that copying, clipping,
optimizing and saving it are single operations.

Scaling is PEFT's: the change of a weight is `(alpha / rank) * B @ A`, with the alpha of the
adapter's `LoraSpec` (32 by default), which is written into its adapter_config.json. A starts
uniform in ±1/sqrt(inputs), B at zero, so a new adapter changes nothing. The start depends on the
seed and the model's shape alone: it is drawn by numpy's Philox, one stream per matrix, never by a
device.

On the unembedding the LoRA belongs to the head only. With tied embeddings the input embedding
keeps the base weights; merging such an adapter must untie the two.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tinkex.engine.interface import LoraSpec
from tinkex.engine.lora.batched import together
from tinkex.engine.lora.linear import LoraPair, LoraRows, Segment

__all__ = [
    "HEAD_SITE",
    "AdapterWeights",
    "ExpertsParameter",
    "LoraBatch",
    "LoraGroup",
    "LoraLayout",
    "LoraTarget",
    "expert_site",
]

HEAD_SITE = "head"

_identities = itertools.count(1)


@dataclass(frozen=True, slots=True)
class ExpertsParameter:
    """One matrix for each of several experts, which PEFT knows as one parameter of this name."""

    name: str
    num_experts: int


@dataclass(frozen=True, slots=True)
class LoraTarget:
    """One matrix of the base that can carry a LoRA; `name` is its module path, as in PEFT.

    If it is that of each of several experts, so is the LoRA, and A and B are those of all experts
    as PEFT stacks them: the rows of A expert by expert, the columns of B rank by rank.
    """

    name: str
    in_features: int
    out_features: int
    experts: ExpertsParameter | None = None

    def width(self, rank: int) -> int:
        """The number of rows of A, which is that of the columns of B."""
        return rank if self.experts is None else rank * self.experts.num_experts


@dataclass(frozen=True, slots=True)
class LoraGroup:
    """Matrices applied to the same input (q, k, v; gate, up), in the order they are fused."""

    site: str
    kind: Literal["attn", "mlp", "unembed"]
    targets: tuple[LoraTarget, ...]


def expert_site(site: str, expert: int) -> str:
    """Returns the site of one expert's LoRA, of the group at this site."""
    return f"{site}.{expert}"


class LoraLayout:
    """The offsets of an adapter's matrices in its flat tensor.

    Group by group: the A of all its targets, one below the other, then each target's B.
    """

    def __init__(self, groups: Iterable[LoraGroup], spec: LoraSpec) -> None:
        wanted = {"attn": spec.train_attn, "mlp": spec.train_mlp, "unembed": spec.train_unembed}
        self.spec = spec
        self.rank = spec.rank
        self.scale = spec.alpha / spec.rank
        self.all_groups = tuple(groups)
        self.groups = tuple(group for group in self.all_groups if wanted[group.kind])
        self.numel = sum(
            t.width(self.rank) * (t.in_features + t.out_features)
            for g in self.groups
            for t in g.targets
        )

    def pairs(self, flat: Tensor) -> dict[str, LoraPair]:
        """Returns the LoRA of every site, as views of `flat`; each expert has a site of its own."""
        found = {}
        for group, a_RD, bs_OR in self._matrices(flat):
            experts = group.targets[0].experts
            if experts is None:
                found[group.site] = LoraPair(a_RD, tuple(bs_OR), self.scale)
                continue
            a_ERD = a_RD.view(experts.num_experts, self.rank, -1)
            (b_ORE,) = (b.view(-1, self.rank, experts.num_experts) for b in bs_OR)
            for e in range(experts.num_experts):
                found[expert_site(group.site, e)] = LoraPair(
                    a_ERD[e], (b_ORE[:, :, e],), self.scale
                )
        return found

    def named(self, flat: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Yields A and B of every target by its module path, as views of `flat`."""
        return {
            target.name: (a_RD, b_OR)
            for group, a_all, bs_OR in self._matrices(flat)
            for target, a_RD, b_OR in zip(
                group.targets, a_all.chunk(len(group.targets)), bs_OR, strict=True
            )
        }

    def _matrices(self, flat: Tensor) -> Iterator[tuple[LoraGroup, Tensor, list[Tensor]]]:
        """Yields the A of all targets of each group, concatenated by rows, and each target's B."""
        offset = 0

        def take(rows: int, columns: int) -> Tensor:
            nonlocal offset
            start, offset = offset, offset + rows * columns
            return flat[start:offset].view(rows, columns)

        for group in self.groups:
            widths = [target.width(self.rank) for target in group.targets]
            a_RD = take(sum(widths), group.targets[0].in_features)
            yield (
                group,
                a_RD,
                [
                    take(target.out_features, width)
                    for target, width in zip(group.targets, widths, strict=True)
                ],
            )

    def initial(self) -> Tensor:
        """Returns the flat tensor that a new adapter starts with."""
        # Zeros that the system hands out when they are written to: B costs nothing yet.
        flat = torch.from_numpy(np.zeros(self.numel, dtype=np.float32))
        for index, (a_RD, _) in enumerate(self.named(flat).values()):
            stream = np.random.SeedSequence(entropy=self.spec.seed % 2**64, spawn_key=(index,))
            numbers = a_RD.numpy().reshape(-1)  # a view: drawn and scaled in place
            np.random.Generator(np.random.Philox(stream)).random(dtype=np.float32, out=numbers)
            bound = 1.0 / math.sqrt(a_RD.shape[1])
            numbers *= np.float32(2 * bound)
            numbers -= np.float32(bound)
        return flat


class AdapterWeights:
    """The numbers of one adapter, ready to be applied. Immutable unless `flat` is shared."""

    def __init__(self, layout: LoraLayout, flat: Tensor) -> None:
        self.identity = next(_identities)  # distinguishes results computed with other weights
        self.layout = layout
        self.flat = flat
        self.pairs = layout.pairs(flat)

    @property
    def size_bytes(self) -> int:
        """Memory of the weights, in bytes."""
        return self.flat.numel() * self.flat.element_size()

    def copy(self) -> AdapterWeights:
        """Returns a copy of the weights in memory of its own."""
        return AdapterWeights(self.layout, self.flat.clone())


class LoraBatch:
    """The adapter of each row of a packed batch.

    `runs` are (end row, weights or None for the base), in order and without gaps.
    """

    def __init__(self, runs: list[tuple[int, dict[str, LoraPair] | None]]) -> None:
        self._runs = runs
        self._at: dict[str, list[LoraRows]] = {}

    @classmethod
    def merged(cls, runs: Iterable[tuple[int, dict[str, LoraPair] | None]]) -> LoraBatch:
        """Returns a batch of (end row, weights), adjacent runs of one adapter joined."""
        merged: list[tuple[int, dict[str, LoraPair] | None]] = []
        for end, pairs in runs:
            if merged and merged[-1][1] is pairs:
                merged.pop()
            merged.append((end, pairs))
        return cls(merged)

    def at(self, site: str) -> list[LoraRows]:
        """Returns the rows whose adapters have a LoRA at this site, batched by shape."""
        if site not in self._at:
            self._at[site] = together(self._segments(site))
        return self._at[site]

    def _segments(self, site: str) -> list[Segment]:
        segments, start = [], 0
        for end, pairs in self._runs:
            pair = pairs.get(site) if pairs else None
            if pair is not None and end > start:
                segments.append(Segment(start, end, pair))
            start = end
        return segments

    def pairs_at(self, row: int) -> dict[str, LoraPair] | None:
        """Returns the adapter of this row, or None for the base model."""
        return next((pairs for stop, pairs in self._runs if row < stop), None)

    def rows(self, start: int, end: int) -> LoraBatch:
        """Returns the batch of these consecutive rows."""
        return LoraBatch([(min(max(stop, start), end) - start, p) for stop, p in self._runs])

    def select(self, indices: Tensor) -> LoraBatch:
        """Returns the batch of these rows, given in rising order."""
        return LoraBatch([(int((indices < stop).sum()), pairs) for stop, pairs in self._runs])

    def stretch(self, lengths: list[int]) -> LoraBatch:
        """Returns the batch in which row i is repeated `lengths[i]` times."""
        ends = np.cumsum([0, *lengths])
        return LoraBatch([(int(ends[stop]), pairs) for stop, pairs in self._runs])
