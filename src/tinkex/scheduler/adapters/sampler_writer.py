"""Ephemeral samplers on their way to the disk, written while other work runs.

A sampler that cannot be written stays in the engine's memory, and its model is marked: a replay of
the model's operations passes the point where the sampler was taken, and writes it.
"""

from __future__ import annotations

import logging
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import NamedTuple

from tinkex.scheduler.adapters.adapter_writer import AdapterWriter
from tinkex.scheduler.adapters.cache import AdapterCache
from tinkex.scheduler.supervisor import Supervisor

__all__ = ["SamplerWriter"]

_logger = logging.getLogger(__name__)

_MAX_PENDING = 2
"""Each pending sampler holds a copy of its weights in memory."""


class _PendingSampler(NamedTuple):
    model_id: str
    written: Future[int]


class SamplerWriter:
    """Writes ephemeral samplers of one engine. Used by the slot's thread only."""

    def __init__(self, supervisor: Supervisor, cache: AdapterCache, writer: AdapterWriter) -> None:
        self._cache = cache
        self._writer = writer
        self.pending: list[_PendingSampler] = []
        # What a lost engine did not write is written when its models are rebuilt.
        supervisor.on_loss(self.pending.clear)

    def start(self, model_id: str, folder: Path) -> Future[int]:
        """The size of the adapter's weights, as they are now, once they are on disk."""
        if len(self.pending) >= _MAX_PENDING:
            wait([each.written for each in self.pending], return_when=FIRST_COMPLETED)
        for each in [each for each in self.pending if each.written.done()]:
            self._finish(each)
        written = self._writer.start_saving(model_id, folder, "weights")
        self.pending.append(_PendingSampler(model_id, written))
        return written

    def wait_for(self, model_id: str) -> None:
        """Returns when no sampler of the model is being written."""
        for each in [each for each in self.pending if each.model_id == model_id]:
            self._finish(each)

    def record_failure(self, model_id: str, error: BaseException) -> None:
        """Records that a sampler of the model is in the engine's memory only."""
        _logger.error("An ephemeral sampler could not be written; it will be retried: %s", error)
        self._cache[model_id].lacks_sampler = True

    def _finish(self, sampler: _PendingSampler) -> None:
        """Waits for the end of the write, and records a failure."""
        self.pending.remove(sampler)
        error = sampler.written.exception()
        if error is not None and sampler.model_id in self._cache:  # else its replay writes it
            self.record_failure(sampler.model_id, error)
