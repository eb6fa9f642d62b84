"""Division of a training batch into jobs, parts for threads, and micro-batches.

Depends on the requests and the number of parts alone, never on timing, so that a batch gives the
same bits every time. Knows nothing of torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tinkex.engine.custom_loss.bounds import WorkBudget
from tinkex.engine.interface import TrainDatum, TrainRequest
from tinkex.losses import Loss

__all__ = ["Item", "Job", "divide", "group_jobs", "microbatches"]

_MIN_PART_TOKENS = 128
"""Minimum mean tokens per part: below it a second gradient costs more than is gained."""

_MAX_IMBALANCE = 1.1
"""The largest part relative to the mean: the batch waits for it. With up to ten parts this also
means that none is empty."""


@dataclass(frozen=True, slots=True)
class Item:
    """One sequence of the batch, and its request and place in it."""

    request_index: int
    datum_index: int
    datum: TrainDatum
    adapter_id: str

    @property
    def num_tokens(self) -> int:
        return int(self.datum.tokens.size)


@dataclass(slots=True)
class Job:
    """Sequences that can share passes: one loss, one config, all with or all without backward.

    Without a `loss`, `custom_loss` is one that a client uploaded, and `budgets` has what each
    request may compute in it, by its index.
    """

    loss: Loss | None
    config: dict[str, float]
    backward: bool
    custom_loss: bytes = b""
    items: list[Item] = field(default_factory=list)
    budgets: dict[int, WorkBudget] = field(default_factory=dict)


def group_jobs(requests: Sequence[TrainRequest], losses: Mapping[str, Loss]) -> Iterable[Job]:
    """Groups the sequences of all requests that can share passes into jobs."""
    jobs: dict[tuple[object, ...], Job] = {}
    for index, request in enumerate(requests):
        if request.custom_loss:
            _add_uploaded(jobs, index, request)
            continue
        loss = losses[request.loss_fn]
        config = loss.config_with(request.loss_config)
        for position, datum in enumerate(request.data):
            names = tuple(sorted(datum.inputs))
            key = (loss.name, tuple(sorted(config.items())), request.backward, names)
            job = jobs.setdefault(key, Job(loss, config, request.backward))
            job.items.append(Item(index, position, datum, request.adapter_id))
    return jobs.values()


def _add_uploaded(jobs: dict[tuple[object, ...], Job], index: int, request: TrainRequest) -> None:
    """Adds a request with an uploaded loss, which runs on one datum at a time."""
    key = (request.custom_loss, request.backward)
    made = Job(None, {}, request.backward, request.custom_loss)
    job = jobs.setdefault(key, made)
    job.budgets[index] = WorkBudget()
    for position, datum in enumerate(request.data):
        job.items.append(Item(index, position, datum, request.adapter_id))


def divide(items: list[Item], num_parts: int, max_tokens: int) -> list[list[Item]] | None:
    """Returns the sequences in `num_parts` lists of about equal size; None if that would not pay.

    All parts have a micro-batch in memory at the same time, so each may have `max_tokens /
    num_parts` tokens. The sequences of a single adapter are spread over all parts; of several
    adapters each stays within one part where it can, because every further part that has it needs
    a gradient of its own.
    """
    total = sum(item.num_tokens for item in items)
    longest = max(item.num_tokens for item in items)
    if num_parts < 2 or total < num_parts * _MIN_PART_TOKENS or longest > max_tokens // num_parts:
        return None
    ordered = _by_adapter(items)
    has_one_adapter = ordered[0].adapter_id == ordered[-1].adapter_id
    parts: list[list[Item]] = [[] for _ in range(num_parts)]
    sizes = [0] * num_parts
    for item in ordered:
        if has_one_adapter:
            index = sizes.index(min(sizes))
        else:
            index = _first_fit(sizes, item.num_tokens, total)
        parts[index].append(item)
        sizes[index] += item.num_tokens
    return parts if max(sizes) <= _MAX_IMBALANCE * total / num_parts else None


def microbatches(items: list[Item], max_tokens: int) -> Iterable[list[Item]]:
    """Returns the sequences in lists of at most `max_tokens` tokens; a longer sequence is alone."""
    batch: list[Item] = []
    size = 0
    for item in _by_adapter(items):
        if batch and size + item.num_tokens > max_tokens:
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += item.num_tokens
    yield batch


def _first_fit(sizes: list[int], num_tokens: int, total: int) -> int:
    """Returns the first part within its share of the total; the last one takes the rest."""
    last = len(sizes) - 1
    fits = (i for i in range(last) if len(sizes) * (sizes[i] + num_tokens) <= total)
    return next(fits, last)


def _by_adapter(items: list[Item]) -> list[Item]:
    """Sorts by adapter (one LoRA segment each), then by length (equal ones
    share an attention call)."""
    order = {
        adapter_id: n for n, adapter_id in enumerate(dict.fromkeys(i.adapter_id for i in items))
    }
    return sorted(items, key=lambda i: (order[i.adapter_id], -i.num_tokens))
