"""Skips sequence numbers that never came, so that the operations behind them run."""

from __future__ import annotations

import logging
import time

from tinkex.scheduler.queues.model_queue import ModelQueue
from tinkex.scheduler.queues.planner import Planner
from tinkex.store import Database, StoreError, operations

__all__ = ["MissingNumbers"]

_logger = logging.getLogger(__name__)


class MissingNumbers:
    """Looks after the queues that wait for a number. The planner's lock guards it."""

    def __init__(self, db: Database, planner: Planner, hole_grace_s: float) -> None:
        self._db = db
        self._planner = planner
        self._hole_grace_s = hole_grace_s

    def skip(self) -> None:
        """Passes over numbers that have been missing for `hole_grace_s`. The lock is held."""
        now = time.monotonic()
        for queue in self._planner.blocked():
            missing = [
                operations.nothing(queue.owner, queue.model_id, seq_id)
                for seq_id in queue.missing(now, self._hole_grace_s)
            ]
            if not missing:
                continue
            try:
                free = self._db.write(operations.skip, missing)
            except StoreError as error:
                _logger.error("Missing numbers cannot be skipped yet: %s", error)
                return
            if free:
                _logger.warning("%d numbers of %s never came.", len(free), queue.model_id)
            for each in missing:
                if each.seq_id in free:
                    self._planner.consume(queue, each.seq_id)
                else:  # it is in the log and was never handed in
                    self._enqueue_logged(queue, each.seq_id, now)

    def _enqueue_logged(self, queue: ModelQueue, seq_id: int, now: float) -> None:
        operation = self._db.read(operations.find, queue.model_id, seq_id)
        if operation is not None and operation.state == "queued":
            self._planner.add(operation, now)
        else:
            self._planner.consume(queue, seq_id)
