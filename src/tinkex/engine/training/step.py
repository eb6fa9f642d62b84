"""A batch of training requests as packed forward and backward passes.

Takes requests that were found valid, sorts their sequences by adapter, packs them into micro-
batches of bounded size, and gives back logprobs, losses and one gradient per adapter. Nothing is
added to any adapter here: the caller does that once the whole batch has gone well.

On two cores the sequences are divided between two threads (`halves`). Who computes what depends on
the batch alone, and what they find is put together in a fixed order, so every bit comes out again.

Shapes: T tokens of a micro-batch · P its targets · D hidden.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tinkex.engine.interface import FloatArray, TrainDatum, TrainRequest, TrainResult
from tinkex.engine.lora.adapter import LoraBatch
from tinkex.engine.lora.linear import LoraPair
from tinkex.engine.model.decoder import Backbone, Decoder
from tinkex.engine.model.lm_head import Head, Targets, score, score_with_gradient
from tinkex.engine.training.halves import can_halve, run_halves
from tinkex.engine.training.loss_slope import loss_and_slope, loss_metrics, may_have_slope
from tinkex.engine.training.metric_totals import MetricTotals
from tinkex.engine.training.optimizer import TrainingState
from tinkex.losses import BUILT_IN, TARGETS, Loss, LossBatch, LossInput

__all__ = ["TrainOutput", "run_training"]

_FEWEST_TOKENS = 256
"""Of a batch that is divided. Below, a second gradient costs more than is gained."""

_HEAVIEST = 0.55
"""How much of it one half may have."""


@dataclass(slots=True)
class TrainOutput:
    """What a batch computed. `gradients` are flat, by adapter id."""

    logprobs: list[list[FloatArray]]
    losses: list[float]
    metrics: list[MetricTotals]
    gradients: dict[str, Tensor]

    def not_finite(self, requests: Sequence[TrainRequest]) -> set[int]:
        """The requests whose loss or metrics are not finite; if there are none, whose gradients."""
        bad = {
            i
            for i, loss in enumerate(self.losses)
            if not all(map(math.isfinite, (loss, *self.metrics[i].reduced().values())))
        }
        if bad:
            return bad
        wild = {i for i, g in self.gradients.items() if not bool(torch.isfinite(g.sum()))}
        return {i for i, r in enumerate(requests) if r.backward and r.adapter_id in wild}

    def result(self, index: int, request: TrainRequest) -> TrainResult:
        """The answer to one request of the batch."""
        return TrainResult(
            logprobs=self.logprobs[index],
            metrics={"loss:sum": self.losses[index], **self.metrics[index].reduced()},
            num_tokens=sum(int(datum.tokens.size) for datum in request.data),
        )


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

    loss: Loss
    config: dict[str, float]
    backward: bool
    items: list[_Item] = field(default_factory=list)


def run_training(
    backbone: Backbone,
    requests: Sequence[TrainRequest],
    states: dict[str, TrainingState],
    max_tokens: int,
    losses: Mapping[str, Loss] = BUILT_IN,
) -> TrainOutput:
    """Forward, and where asked backward, of all requests; `max_tokens` bounds a micro-batch."""
    output = TrainOutput(
        logprobs=[[np.empty(0, np.float32)] * len(r.data) for r in requests],
        losses=[0.0] * len(requests),
        metrics=[MetricTotals() for _ in requests],
        gradients={
            r.adapter_id: torch.zeros_like(states[r.adapter_id].weights.flat)
            for r in requests
            if r.backward
        },
    )
    may_halve = isinstance(backbone, Decoder) and can_halve(backbone.head_VD)
    for job in _jobs(requests, losses):
        pairs = {i: s.weights.pairs for i, s in states.items()}
        if job.backward:
            pairs = _leaves(states, output.gradients)
        halves = _in_halves(job.items, max_tokens) if may_halve else None
        if halves is None:
            found = _run_passes(backbone, job, _microbatches(job.items, max_tokens), pairs)
        else:
            found = _run_halves(backbone, job, halves, max_tokens // 2, pairs, states, output)
        for each in found:
            each.file(output)
    return output


def _leaves(
    states: dict[str, TrainingState], gradients: dict[str, Tensor]
) -> dict[str, dict[str, LoraPair]]:
    return {i: states[i].trainable_pairs(gradient) for i, gradient in gradients.items()}


def _run_passes(
    backbone: Backbone,
    job: _Job,
    batches: Iterable[list[_Item]],
    pairs: dict[str, dict[str, LoraPair]],
) -> list[_Pass]:
    """Micro-batches, one after the other, their gradients added to the pairs'."""
    passes = [_Pass(backbone, job, items, pairs) for items in batches]
    for each in passes:
        each.run()
    return passes


def _run_halves(
    backbone: Backbone,
    job: _Job,
    halves: tuple[list[_Item], list[_Item]],
    max_tokens: int,
    pairs: dict[str, dict[str, LoraPair]],
    states: dict[str, TrainingState],
    output: TrainOutput,
) -> list[_Pass]:
    """Both halves at once. An adapter that is in both has a gradient in each, added up after."""
    in_first, in_second = ({item.adapter_id for item in half} for half in halves)
    more = {
        i: torch.zeros_like(gradient)
        for i, gradient in output.gradients.items()
        if job.backward and i in in_first & in_second
    }
    first, second = (
        partial(_run_passes, backbone, job, list(_microbatches(half, max_tokens)), leaves)
        for half, leaves in zip(halves, (pairs, pairs | _leaves(states, more)), strict=True)
    )
    found = run_halves(first, second)
    for adapter_id, gradient in more.items():
        output.gradients[adapter_id].add_(gradient)
    return [*found[0], *found[1]]


def _jobs(requests: Sequence[TrainRequest], losses: Mapping[str, Loss]) -> Iterable[_Job]:
    jobs: dict[tuple[object, ...], _Job] = {}
    for index, request in enumerate(requests):
        loss = losses[request.loss_fn]
        config = loss.config_with(request.loss_config)
        for position, datum in enumerate(request.data):
            names = tuple(sorted(datum.inputs))
            key = (loss.name, tuple(sorted(config.items())), request.backward, names)
            job = jobs.setdefault(key, _Job(loss, config, request.backward))
            job.items.append(_Item(index, position, datum, request.adapter_id))
    return jobs.values()


def _in_halves(items: list[_Item], max_tokens: int) -> tuple[list[_Item], list[_Item]] | None:
    """The sequences in two lists that take about as long; None if that would not pay.

    Two micro-batches are under way then, so each may have half of the tokens. Those of one adapter
    are dealt out, of several each adapter stays in one half where it can.
    """
    total = sum(item.num_tokens for item in items)
    if total < _FEWEST_TOKENS or max(item.num_tokens for item in items) > max_tokens // 2:
        return None
    ordered = _by_adapter(items)
    has_one = ordered[0].adapter_id == ordered[-1].adapter_id
    halves: tuple[list[_Item], list[_Item]] = ([], [])
    sizes = [0, 0]
    for item in ordered:
        is_first = sizes[0] <= sizes[1] if has_one else 2 * (sizes[0] + item.num_tokens) <= total
        half = 0 if is_first else 1
        halves[half].append(item)
        sizes[half] += item.num_tokens
    return halves if max(sizes) <= _HEAVIEST * total else None


def _by_adapter(items: list[_Item]) -> list[_Item]:
    """Sorted by adapter (one LoRA segment each), then by length (equal ones attend together)."""
    order = {
        adapter_id: n for n, adapter_id in enumerate(dict.fromkeys(i.adapter_id for i in items))
    }
    return sorted(items, key=lambda i: (order[i.adapter_id], -i.num_tokens))


def _microbatches(items: list[_Item], max_tokens: int) -> Iterable[list[_Item]]:
    batch: list[_Item] = []
    size = 0
    for item in _by_adapter(items):
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
        self._counts = [int(item.datum.inputs[TARGETS].size) for item in items]
        self._targets = self._build_targets(ends)
        self._inputs = self._build_inputs()
        self._lp_P = self._loss_P = np.empty(0, np.float32)
        self._metrics_P: dict[str, npt.NDArray[np.float64]] = {}

    def run(self) -> None:
        """Computes the micro-batch and adds its gradients to those of its pairs."""
        tokens_T = self._tensor([item.datum.tokens for item in self._items], torch.int64)
        if self._job.backward:
            hidden_TD, backward = self._backbone.forward_with_backward(
                tokens_T, self._lengths, self._lora
            )
            lp_P, loss_P, dhidden_TD = self._loss_and_gradient(hidden_TD)
            backward(dhidden_TD)
        else:
            hidden_TD = self._backbone.forward_hidden(tokens_T, self._lengths, self._lora)
            lp_P = score(self._head(), hidden_TD, self._targets)
            loss_P, _ = loss_and_slope(self._job.loss, lp_P, self._inputs)
        metrics_P = loss_metrics(self._job.loss, lp_P, self._inputs)
        self._metrics_P = {name: m_P.double().cpu().numpy() for name, m_P in metrics_P.items()}
        self._lp_P, self._loss_P = lp_P.cpu().numpy(), loss_P.double().cpu().numpy()

    def _loss_and_gradient(self, hidden_TD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        head, loss, inputs = self._head(), self._job.loss, self._inputs
        is_live_P = may_have_slope(loss, inputs)
        if loss.is_separable:

            def slope_of(place_P: Tensor, lp_P: Tensor) -> Tensor:
                return loss_and_slope(loss, lp_P, inputs.select(place_P))[1]

        else:
            # A loss over whole sequences needs every logprob before the first slope is known.
            first_P = score(head, hidden_TD, self._targets)
            all_P = loss_and_slope(loss, first_P, inputs)[1]

            def slope_of(place_P: Tensor, lp_P: Tensor) -> Tensor:
                return all_P[place_P]

        lp_P, dhidden_TD = score_with_gradient(head, hidden_TD, self._targets, is_live_P, slope_of)
        return lp_P, loss_and_slope(loss, lp_P, inputs)[0], dhidden_TD

    def _head(self) -> Head:
        return Head(self._backbone.head, self._lora)

    def file(self, output: TrainOutput) -> None:
        """Puts logprobs and losses where they belong."""
        start = 0
        for item, count in zip(self._items, self._counts, strict=True):
            shape = item.datum.inputs[TARGETS].shape
            values = self._lp_P[start : start + count].reshape(shape).astype(np.float32)
            output.logprobs[item.request_index][item.datum_index] = values
            output.losses[item.request_index] += float(self._loss_P[start : start + count].sum())
            for name, each_P in self._metrics_P.items():
                output.metrics[item.request_index].add(name, each_P[start : start + count])
            start += count

    def _build_targets(self, ends: np.ndarray) -> Targets:
        rows = [
            np.repeat(np.arange(end - item.num_tokens, end), count // item.num_tokens)
            for item, end, count in zip(self._items, ends, self._counts, strict=True)
        ]
        tokens = [item.datum.inputs[TARGETS].reshape(-1) for item in self._items]
        return Targets(self._tensor(rows, torch.int64), self._tensor(tokens, torch.int64))

    def _build_inputs(self) -> LossBatch:
        names = sorted(self._items[0].datum.inputs.keys() - {TARGETS})
        arrays = {name: self._build_input(self._job.loss.input(name)) for name in names}
        sequence = [np.full(count, n) for n, count in enumerate(self._counts)]
        return LossBatch(
            arrays, self._tensor(sequence, torch.int64), len(self._items), self._job.config
        )

    def _build_input(self, spec: LossInput) -> Tensor:
        parts = [item.datum.inputs[spec.name].reshape(-1) for item in self._items]
        if spec.per == "datum":
            parts = [np.repeat(part, n) for part, n in zip(parts, self._counts, strict=True)]
        return self._tensor(parts, torch.int64 if spec.dtype == "int64" else torch.float32)

    def _tensor(self, parts: Sequence[np.ndarray], dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(np.concatenate(parts)).to(device=self._device, dtype=dtype)
