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
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from tinkex.engine.errors import EngineUserError
from tinkex.engine.interface import FloatArray, TrainRequest, TrainResult
from tinkex.engine.lora.adapter import LoraBatch
from tinkex.engine.lora.linear import LoraPair
from tinkex.engine.model.decoder import Backbone, Decoder
from tinkex.engine.model.lm_head import Head, Targets
from tinkex.engine.training.batching import Item, Job, divide, group_jobs, microbatches
from tinkex.engine.training.declared_loss import DeclaredPassLoss
from tinkex.engine.training.metric_totals import MetricTotals
from tinkex.engine.training.optimizer import TrainingState
from tinkex.engine.training.part_threads import num_part_threads, run_parts
from tinkex.engine.training.pass_loss import PassLoss
from tinkex.engine.training.uploaded_loss import UploadedPassLoss
from tinkex.losses import BUILT_IN, TARGETS, Loss

__all__ = ["TrainOutput", "run_training"]


_NOT_FINITE = EngineUserError(
    "The loss, a metric or the gradient is not finite, so nothing was added to the adapter. Usual "
    "causes: sampler logprobs far below the model's own, huge weights or advantages, or a learning "
    "rate that has already ruined the adapter.",
    code="loss-not-finite",
    field="data",
)


@dataclass(slots=True)
class TrainOutput:
    """The results of a batch. `gradients` are flat, by adapter id.

    Requests in `refused`, by their index, have a loss that cannot be computed; what is here of them
    means nothing.
    """

    logprobs: list[list[FloatArray]]
    losses: list[float]
    metrics: list[MetricTotals]
    gradients: dict[str, Tensor]
    refused: dict[int, EngineUserError] = field(default_factory=dict)

    def refusals(self, requests: Sequence[TrainRequest]) -> Mapping[int, EngineUserError]:
        """Returns why each request that must not be applied is refused, by its index."""
        return self.refused or dict.fromkeys(self._not_finite(requests), _NOT_FINITE)

    def _not_finite(self, requests: Sequence[TrainRequest]) -> set[int]:
        """Returns the requests whose loss or metrics are not finite; if there are none, those whose
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
        """Returns the result of one request of the batch."""
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
    """Runs the forward of all requests, and the backward of those that need gradients; `max_tokens`
    bounds the tokens of all micro-batches in memory at the same time."""
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
    """Returns the LoRA matrices of each adapter; for a backward, with the gradient buffers
    to add to."""
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
    """Runs all parts in parallel. An adapter in several parts has a gradient in each of them; the
    gradients are summed afterwards, in the order of the parts."""
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
    """Returns zeroed gradients for the adapters of each part that are in an earlier part too."""
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
        self._loss = _pass_loss(job, items, self._device)
        self._lp_P = np.empty(0, np.float32)

    def run(self) -> None:
        """Computes the micro-batch and adds its gradients to those of its pairs."""
        tokens_T = self._tensor([item.datum.tokens for item in self._items], torch.int64)
        head = Head(self._backbone.head, self._lora)
        if self._job.backward:
            hidden_TD, backward = self._backbone.forward_with_backward(
                tokens_T, self._lengths, self._lora
            )
            lp_P, dhidden_TD = self._loss.score_with_gradient(head, hidden_TD, self._targets)
            backward(dhidden_TD)
        else:
            hidden_TD = self._backbone.forward_hidden(tokens_T, self._lengths, self._lora)
            lp_P = self._loss.score(head, hidden_TD, self._targets)
        self._lp_P = lp_P.cpu().numpy()

    def scatter_results(self, output: TrainOutput) -> None:
        """Writes logprobs, losses and metrics to the requests they belong to."""
        start = 0
        for place, (item, count) in enumerate(zip(self._items, self._counts, strict=True)):
            shape = item.datum.inputs[TARGETS].shape
            values = self._lp_P[start : start + count].reshape(shape).astype(np.float32)
            output.logprobs[item.request_index][item.datum_index] = values
            output.losses[item.request_index] += self._loss.loss(place)
            for name, each in self._loss.metrics(place).items():
                output.metrics[item.request_index].add(name, each)
            start += count
        output.refused.update(self._loss.refused)

    def _build_targets(self, ends: np.ndarray) -> Targets:
        rows = [
            np.repeat(np.arange(end - item.num_tokens, end), count // item.num_tokens)
            for item, end, count in zip(self._items, ends, self._counts, strict=True)
        ]
        tokens = [item.datum.inputs[TARGETS].reshape(-1) for item in self._items]
        return Targets(self._tensor(rows, torch.int64), self._tensor(tokens, torch.int64))

    def _tensor(self, parts: Sequence[np.ndarray], dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(np.concatenate(parts)).to(device=self._device, dtype=dtype)


def _pass_loss(job: Job, items: list[Item], device: torch.device) -> PassLoss:
    if job.loss is None:
        return UploadedPassLoss(job.custom_loss, items, job.budgets)
    return DeclaredPassLoss(job.loss, job.config, items, device)
