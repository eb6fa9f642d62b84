"""A batch of training requests as packed forward and backward passes.

Takes requests that were found valid, sorts their sequences by adapter, packs them into micro-
batches of bounded size, and gives back logprobs, losses and one gradient per adapter. Nothing is
added to any adapter here: the caller does that once the whole batch has gone well.

Shapes: T tokens of a micro-batch · P its targets · D hidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from tinkex.engine.head import Head, Targets, score, score_with_gradient
from tinkex.engine.interface import FloatArray, TrainDatum, TrainRequest
from tinkex.engine.lora import LoraBatch
from tinkex.engine.lora_linear import LoraPair
from tinkex.engine.losses import (
    LossInputs,
    is_separable,
    loss_and_slope,
    may_have_slope,
    merge_config,
)
from tinkex.engine.model import Backbone
from tinkex.engine.optimizer import TrainingState

__all__ = ["TrainOutput", "run_training"]


@dataclass(slots=True)
class TrainOutput:
    """What a batch computed. `gradients` are flat, by adapter id."""

    logprobs: list[list[FloatArray]]
    losses: list[float]
    gradients: dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class _Item:
    """One sequence of the batch, and where its answer goes."""

    request_index: int
    datum_index: int
    datum: TrainDatum
    adapter_id: str

    @property
    def num_tokens(self) -> int:
        return int(self.datum.tokens.size)


@dataclass(slots=True)
class _Job:
    """Sequences that can share passes: one loss, one config, all with or all without backward."""

    loss_fn: str
    config: dict[str, float]
    backward: bool
    items: list[_Item] = field(default_factory=list)


def run_training(
    backbone: Backbone,
    requests: Sequence[TrainRequest],
    states: dict[str, TrainingState],
    max_tokens: int,
) -> TrainOutput:
    """Forward, and where asked backward, of all requests; `max_tokens` bounds a micro-batch."""
    output = TrainOutput(
        logprobs=[[np.empty(0, np.float32)] * len(r.data) for r in requests],
        losses=[0.0] * len(requests),
        gradients={
            r.adapter_id: torch.zeros_like(states[r.adapter_id].weights.flat)
            for r in requests
            if r.backward
        },
    )
    leaves = {
        adapter_id: states[adapter_id].trainable_pairs(gradient)
        for adapter_id, gradient in output.gradients.items()
    }
    for job in _jobs(requests):
        pairs = leaves if job.backward else {i: s.weights.pairs for i, s in states.items()}
        for items in _microbatches(job.items, max_tokens):
            _Pass(backbone, job, items, pairs).run(output)
    return output


def _jobs(requests: Sequence[TrainRequest]) -> Iterable[_Job]:
    jobs: dict[tuple[object, ...], _Job] = {}
    for index, request in enumerate(requests):
        config = merge_config(request.loss_fn, request.loss_config)
        for position, datum in enumerate(request.data):
            names = tuple(sorted(datum.inputs))
            key = (request.loss_fn, tuple(sorted(config.items())), request.backward, names)
            job = jobs.setdefault(key, _Job(request.loss_fn, config, request.backward))
            job.items.append(_Item(index, position, datum, request.adapter_id))
    return jobs.values()


def _microbatches(items: list[_Item], max_tokens: int) -> Iterable[list[_Item]]:
    """Sorted by adapter (one LoRA segment each), then by length (equal ones attend together)."""
    order = {
        adapter_id: n for n, adapter_id in enumerate(dict.fromkeys(i.adapter_id for i in items))
    }
    batch: list[_Item] = []
    size = 0
    for item in sorted(items, key=lambda i: (order[i.adapter_id], -i.num_tokens)):
        if batch and size + item.num_tokens > max_tokens:
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += item.num_tokens
    yield batch


class _Pass:
    """One micro-batch on its way through model, head and loss, and back."""

    def __init__(
        self,
        backbone: Backbone,
        job: _Job,
        items: list[_Item],
        pairs: dict[str, dict[str, LoraPair]],
    ) -> None:
        self._backbone, self._job, self._items = backbone, job, items
        self._device = backbone.head_VD.device
        self._lengths = [item.num_tokens for item in items]
        ends = np.cumsum(self._lengths)
        self._lora = LoraBatch.merged(
            (int(end), pairs[item.adapter_id]) for end, item in zip(ends, items, strict=True)
        )
        self._counts = [int(item.datum.inputs["target_tokens"].size) for item in items]
        self._targets = self._build_targets(ends)
        self._inputs = self._build_inputs()

    def run(self, output: TrainOutput) -> None:
        """Computes the micro-batch and files logprobs, losses and gradients."""
        tokens_T = self._tensor([item.datum.tokens for item in self._items], torch.int64)
        if self._job.backward:
            hidden_TD, backward = self._backbone.packed_pass(tokens_T, self._lengths, self._lora)
            lp_P, loss_P, dhidden_TD = self._loss_and_gradient(hidden_TD)
            backward(dhidden_TD)
        else:
            hidden_TD = self._backbone.packed_hidden(tokens_T, self._lengths, self._lora)
            lp_P = score(self._head(), hidden_TD, self._targets)
            loss_P, _ = loss_and_slope(self._job.loss_fn, lp_P, self._inputs)
        self._file(lp_P.cpu().numpy(), loss_P.double().cpu().numpy(), output)

    def _loss_and_gradient(self, hidden_TD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        head, loss_fn, inputs = self._head(), self._job.loss_fn, self._inputs
        is_live_P = may_have_slope(loss_fn, inputs)
        if is_separable(loss_fn):

            def slope_of(place_P: Tensor, lp_P: Tensor) -> Tensor:
                return loss_and_slope(loss_fn, lp_P, inputs.select(place_P))[1]

        else:
            # A loss over whole sequences needs every logprob before the first slope is known.
            first_P = score(head, hidden_TD, self._targets)
            all_P = loss_and_slope(loss_fn, first_P, inputs)[1]

            def slope_of(place_P: Tensor, lp_P: Tensor) -> Tensor:
                return all_P[place_P]

        lp_P, dhidden_TD = score_with_gradient(head, hidden_TD, self._targets, is_live_P, slope_of)
        return lp_P, loss_and_slope(loss_fn, lp_P, inputs)[0], dhidden_TD

    def _head(self) -> Head:
        return Head(self._backbone.head, self._lora)

    def _file(self, lp_P: FloatArray, loss_P: FloatArray, output: TrainOutput) -> None:
        start = 0
        for item, count in zip(self._items, self._counts, strict=True):
            shape = item.datum.inputs["target_tokens"].shape
            values = lp_P[start : start + count].reshape(shape).astype(np.float32)
            output.logprobs[item.request_index][item.datum_index] = values
            output.losses[item.request_index] += float(loss_P[start : start + count].sum())
            start += count

    def _build_targets(self, ends: np.ndarray) -> Targets:
        rows = [
            np.repeat(np.arange(end - item.num_tokens, end), count // item.num_tokens)
            for item, end, count in zip(self._items, ends, self._counts, strict=True)
        ]
        tokens = [item.datum.inputs["target_tokens"].reshape(-1) for item in self._items]
        return Targets(self._tensor(rows, torch.int64), self._tensor(tokens, torch.int64))

    def _build_inputs(self) -> LossInputs:
        names = sorted(self._items[0].datum.inputs.keys() - {"target_tokens"})
        arrays = {
            name: self._tensor(
                [item.datum.inputs[name].reshape(-1) for item in self._items], torch.float32
            )
            for name in names
        }
        sequence = [np.full(count, n) for n, count in enumerate(self._counts)]
        return LossInputs(
            arrays, self._tensor(sequence, torch.int64), len(self._items), self._job.config
        )

    def _tensor(self, parts: Sequence[np.ndarray], dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(np.concatenate(parts)).to(device=self._device, dtype=dtype)
