"""Caches the heads of runs' series, so that a training step reads none from the store.

A head changes in the store first: `changes` computes the new heads from a batch's outcomes, and
`accept` caches them once they are written. One slot at a time runs a model, so a head has one
change at a time.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping

from tinkex.store import Database, models
from tinkex.store.operation_outcomes import OperationOutcome, SeriesChange
from tinkex.store.run_points import THIN_EVERY
from tinkex.store.run_series import SeriesHead

__all__ = ["SeriesKeeper"]

_MAX_HEADS = 4096


class SeriesKeeper:
    """The heads of the series that were used last. Thread-safe."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._lock = threading.Lock()
        self._heads: OrderedDict[str, SeriesHead] = OrderedDict()

    def changes(self, outcomes: Iterable[OperationOutcome]) -> dict[str, SeriesChange]:
        """The changes of the runs' series by these outcomes, in order."""
        found: dict[str, SeriesChange] = {}
        now = time.time()
        for outcome in outcomes:
            model_id = outcome.operation.model_id
            if not outcome.changes_series:
                continue
            before = found[model_id].head if model_id in found else self._head(model_id)
            has_point = outcome.step_metrics is not None
            head = outcome.series_after(before, now)
            is_full = has_point and head.num_points % THIN_EVERY == 0
            found[model_id] = SeriesChange(head=head, has_point=has_point, is_full=is_full)
        return found

    def accept(self, changes: Mapping[str, SeriesChange]) -> None:
        """Caches the heads that were written to the store."""
        for model_id, change in changes.items():
            self._keep(model_id, change.head)

    def _head(self, model_id: str) -> SeriesHead:
        with self._lock:
            found = self._heads.get(model_id)
        if found is None:
            found = self._db.read(models.series_head, model_id)
        return found

    def _keep(self, model_id: str, head: SeriesHead) -> None:
        with self._lock:
            self._heads[model_id] = head
            self._heads.move_to_end(model_id)
            if len(self._heads) > _MAX_HEADS:
                self._heads.popitem(last=False)
