"""The scheduler: which operation runs next, on which engine, and how its result is stored.

Order within a model by sequence number, fairness between tenants by token cost, several tenants'
compatible operations in one engine batch, sampling interleaved with training, and recovery of
adapters from the log. Knows the store and the engine's interface; nothing of HTTP. All of it is
`tinkex.scheduler.scheduler.Scheduler`, which takes its time to import.
"""

from __future__ import annotations

from tinkex.scheduler.config import SchedulerConfig

__all__ = ["SchedulerConfig"]
