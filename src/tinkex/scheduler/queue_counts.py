"""Numbers of waiting and running requests, by kind of work and by tenant."""

from __future__ import annotations

from collections import Counter

import msgspec

from tinkex.scheduler.queues.planner import Planner
from tinkex.scheduler.queues.sample_queue import SampleQueue
from tinkex.scheduler.slot_wakeups import SlotWakeups
from tinkex.store.clock import steady_now

__all__ = ["QueueCounts", "TenantCounts", "count_queues"]


class TenantCounts(msgspec.Struct, kw_only=True):
    """Unfinished work of one tenant."""

    operations: int = 0  # that wait
    requests: int = 0  # to sample, that wait
    running_requests: int = 0


class QueueCounts(msgspec.Struct, kw_only=True):
    """Unfinished work of all tenants."""

    operations: Counter[str]  # that wait, by kind
    running_operations: int
    models: int  # that have operations waiting
    operation_tokens: int
    oldest_operation_s: float
    requests: int
    request_tokens: int
    running_requests: int
    running_sequences: int
    oldest_request_s: float  # of those that wait
    tenants: dict[str, TenantCounts]


def count_queues(planner: Planner, sample_queue: SampleQueue, wakeup: SlotWakeups) -> QueueCounts:
    """The counts as of now."""
    with wakeup:
        operations, num_running = planner.waiting_operations(), planner.num_running()
        num_models = len(planner.busy_models())
    requests = sample_queue.unfinished()
    waiting = [each.sample for each in requests if each.slot_id is None]
    running = [each.sample for each in requests if each.slot_id is not None]
    tenants: dict[str, TenantCounts] = {}
    for operation in operations:
        tenants.setdefault(operation.owner, TenantCounts()).operations += 1
    for sample in waiting:
        tenants.setdefault(sample.owner, TenantCounts()).requests += 1
    for sample in running:
        tenants.setdefault(sample.owner, TenantCounts()).running_requests += 1
    now = steady_now()
    return QueueCounts(
        operations=Counter(each.kind for each in operations),
        running_operations=num_running,
        models=num_models,
        operation_tokens=sum(each.cost for each in operations),
        oldest_operation_s=max((now - each.created_at for each in operations), default=0.0),
        requests=len(waiting),
        request_tokens=sum(each.cost for each in waiting),
        running_requests=len(running),
        running_sequences=sum(each.num_samples for each in running),
        oldest_request_s=max((now - each.created_at for each in waiting), default=0.0),
        tenants=tenants,
    )
