"""A batch of training requests as packed forward and backward passes.

Takes validated requests, packs their sequences into micro-batches of bounded size (`batching`), and
returns logprobs, losses and one gradient per adapter. Nothing is added to any adapter here: the
caller does that once the whole batch has succeeded.

On a CPU with several threads the sequences may be divided among them (`part_threads`). The division
depends on the batch and the number of threads alone, and results are summed in a fixed order, so
the same batch gives the same bits on the same number of threads.

Shapes: T tokens of a micro-batch · P its targets · D hidden.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tinkex.engine.interface import FloatArray, TrainRequest, TrainResult
from tinkex.engine.lora.adapter import LoraBatch
from tinkex.engine.lora.linear import LoraPair
from tinkex.engine.model.decoder import Backbone, Decoder
from tinkex.engine.model.lm_head import Head, Targets, score, score_with_gradient
from tinkex.engine.training.batching import Item, Job, divide, group_jobs, microbatches
from tinkex.engine.training.loss_slope import loss_and_slope, loss_metrics, may_have_slope
from tinkex.engine.training.metric_totals import MetricTotals
from tinkex.engine.training.optimizer import TrainingState
from tinkex.engine.training.part_threads import num_part_threads, run_parts
from tinkex.losses import BUILT_IN, TARGETS, Loss, LossBatch, LossInput

__all__ = ["TrainOutput", "run_training"]


@dataclass(slots=True)
class TrainOutput:
    """The results of a batch. `gradients` are flat, by adapter id."""

    logprobs: list[list[FloatArray]]
    losses: list[float]
    metrics: list[MetricTotals]
    gradients: dict[str, Tensor]

    def not_finite(self, requests: Sequence[TrainRequest]) -> set[int]:
        """The requests whose loss or metrics are not finite; if there are none, those whose
        gradients are not."""
        bad = {
            i
            for i, loss in enumerate(self.losses)
            if not all(map(math.isfinite, (loss, *self.metrics[i].reduced().values())))
        }
        if bad:
            return bad
        not_finite = {i for i, g in self.gradients.items() if not bool(torch.isfinite(g.sum()))}
        return {i for i, r in enumerate(requests) if r.backward and r.adapter_id in not_finite}

    def result(self, index: int, request: TrainRequest) -> TrainResult:
        """The result of one request of the batch."""
        return TrainResult(
            logprobs=self.logprobs[index],
            metrics={"loss:sum": self.losses[index], **self.metrics[index].reduced()},
            num_tokens=sum(int(datum.tokens.size) for datum in request.data),
        )


def run_training(
    backbone: Backbone,
    requests: Sequence[TrainRequest],
    states: dict[str, TrainingState],
    max_tokens: int,
    losses: Mapping[str, Loss] = BUILT_IN,
) -> TrainOutput:
    """The forward of all requests, and the backward of those that want one; `max_tokens` bounds
    the tokens of all micro-batches in memory at the same time."""
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
    num_parts = num_part_threads(backbone.head_VD) if isinstance(backbone, Decoder) else 1
    for job in group_jobs(requests, losses):
        parts = divide(job.items, num_parts, max_tokens)
        if parts is None:
            pairs = _pairs(job, states, output.gradients)
            passes = _run_passes(backbone, job, microbatches(job.items, max_tokens), pairs)
        else:
            passes = _run_parts(backbone, job, parts, max_tokens, states, output)
        for each in passes:
            each.scatter_results(output)
    return output


def _pairs(
    job: Job, states: dict[str, TrainingState], gradients: dict[str, Tensor]
) -> dict[str, dict[str, LoraPair]]:
    """The LoRA matrices of each adapter; for a backward, with these gradients to add to."""
    if job.backward:
        return {i: states[i].trainable_pairs(gradient) for i, gradient in gradients.items()}
    return {i: state.weights.pairs for i, state in states.items()}


def _run_passes(
    backbone: Backbone,
    job: Job,
    batches: Iterable[list[Item]],
    pairs: dict[str, dict[str, LoraPair]],
) -> list[_Pass]:
    """Runs micro-batches one after the other; their gradients are added to those of the pairs."""
    passes = [_Pass(backbone, job, items, pairs) for items in batches]
    for each in passes:
        each.run()
    return passes


def _run_parts(
    backbone: Backbone,
    job: Job,
    parts: Sequence[list[Item]],
    max_tokens: int,
    states: dict[str, TrainingState],
    output: TrainOutput,
) -> list[_Pass]:
    """All parts at the same time. An adapter in several parts has a gradient in each of them;
    they are added up afterwards, in the order of the parts."""
    extra = _extra_gradients(parts, output.gradients) if job.backward else [{}] * len(parts)
    batches = [list(microbatches(part, max_tokens // len(parts))) for part in parts]
    pairs = [_pairs(job, states, output.gradients | more) for more in extra]
    results = run_parts(
        [partial(_run_passes, backbone, job, *each) for each in zip(batches, pairs, strict=True)]
    )
    for more in extra:
        for adapter_id, gradient in more.items():
            output.gradients[adapter_id].add_(gradient)
    return [each for passes in results for each in passes]


def _extra_gradients(
    parts: Sequence[list[Item]], gradients: dict[str, Tensor]
) -> list[dict[str, Tensor]]:
    """For each part, a gradient of zeros for every adapter that is in an earlier part too."""
    extra: list[dict[str, Tensor]] = []
    earlier: set[str] = set()
    for part in parts:
        here = {item.adapter_id for item in part}
        extra.append({i: torch.zeros_like(gradients[i]) for i in gradients if i in here & earlier})
        earlier |= here
    return extra


class _Pass:
    """One micro-batch: forward through model, head and loss, and the backward."""

    def __init__(
        self,
        backbone: Backbone,
        job: Job,
        items: list[Item],
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

            def slope_of(index_P: Tensor, lp_P: Tensor) -> Tensor:
                return loss_and_slope(loss, lp_P, inputs.select(index_P))[1]

        else:
            # A loss over whole sequences needs every logprob before the first slope is known.
            first_P = score(head, hidden_TD, self._targets)
            all_P = loss_and_slope(loss, first_P, inputs)[1]

            def slope_of(index_P: Tensor, lp_P: Tensor) -> Tensor:
                return all_P[index_P]

        lp_P, dhidden_TD = score_with_gradient(head, hidden_TD, self._targets, is_live_P, slope_of)
        return lp_P, loss_and_slope(loss, lp_P, inputs)[0], dhidden_TD

    def _head(self) -> Head:
        return Head(self._backbone.head, self._lora)

    def scatter_results(self, output: TrainOutput) -> None:
        """Writes logprobs, losses and metrics to the requests they belong to."""
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
