"""One engine and everything that belongs to it alone.

A slot outlives its engine: when the engine is lost, the slot's supervisor starts another, the slot
keeps its models, and its thread rebuilds their adapters there. Other slots are not affected.
"""

from __future__ import annotations

from collections.abc import Callable

from tinkex.engine.interface import Engine
from tinkex.scheduler.adapters.checkpointing import Checkpointer
from tinkex.scheduler.adapters.engine_adapters import EngineAdapters
from tinkex.scheduler.batch_runner import BatchRunner
from tinkex.scheduler.driver import Driver
from tinkex.scheduler.model_moves import ModelMoves
from tinkex.scheduler.running.executor import Executor
from tinkex.scheduler.running.sample_preparation import SamplePreparation
from tinkex.scheduler.running.sampling_executor import SamplingExecutor
from tinkex.scheduler.shared import SharedParts
from tinkex.scheduler.supervisor import Supervisor

__all__ = ["EngineSlot"]


class EngineSlot:
    """The parts of a slot, lowest first: each knows only those built before it."""

    def __init__(
        self, slot_id: int, engine_factory: Callable[[], Engine], shared: SharedParts
    ) -> None:
        name = f"engine of worker-{slot_id}" if shared.placement.num_slots > 1 else "engine"
        self.supervisor = Supervisor(engine_factory, name)
        load = shared.placement.loads[slot_id]
        load.is_up = lambda: self.supervisor.state().state == "ready"
        load.starting_s = lambda: self.supervisor.starting_s
        self.adapters = EngineAdapters(
            self.supervisor,
            shared.db,
            shared.bodies,
            shared.folders,
            shared.cleanup,
            shared.config,
        )
        checkpointer = Checkpointer(shared.db, self.adapters, shared.disk_quota)
        executor = Executor(
            shared.db,
            self.adapters,
            checkpointer,
            shared.bodies,
            shared.publish,
            shared.announce,
            shared.series,
            shared.counters,
        )
        preparation = SamplePreparation(
            slot_id, shared.db, self.adapters, shared.placement, shared.sample_queue
        )
        sampling = SamplingExecutor(
            slot_id,
            self.adapters,
            preparation,
            shared.sample_queue,
            shared.sample_writer,
            shared.streams,
            shared.wakeup,
        )
        batches = BatchRunner(slot_id, shared, self.adapters.cache, executor)
        moves = ModelMoves(slot_id, shared, self.adapters)
        self.driver = Driver(slot_id, shared, self.adapters, batches, preparation, sampling, moves)
