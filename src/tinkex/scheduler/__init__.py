"""Which operation runs next, and what becomes of it.

Order within a model by sequence number, fairness between tenants by token cost, several tenants'
compatible operations in one engine batch, sampling interleaved with training, and recovery of
adapters from the log. Knows the store and the engine's interface; nothing of HTTP.
"""

from __future__ import annotations

from tinkex.scheduler.scheduler import Progress, Scheduler, SchedulerConfig

__all__ = ["Progress", "Scheduler", "SchedulerConfig"]
