"""One engine that is started, and started again when it fails."""

from __future__ import annotations

from tinkex.engine.interface import EngineFailure, ModelInfo
from tinkex.engine.null import NullEngine
from tinkex.scheduler.supervisor import Supervisor


class DiesAtFirst(NullEngine):
    """The first of these dies right after its start."""

    made: list[DiesAtFirst]

    def __init__(self) -> None:
        super().__init__()
        self.is_closed = False
        self.made.append(self)

    def models(self) -> list[ModelInfo]:
        if self is self.made[0]:
            raise EngineFailure("killed", code="engine-died")
        return super().models()

    def close(self) -> None:
        self.is_closed = True
        super().close()


def test_an_engine_that_dies_right_after_its_start_is_closed_and_another_started() -> None:
    DiesAtFirst.made = []
    supervisor = Supervisor(DiesAtFirst)
    assert supervisor.engine is DiesAtFirst.made[1]
    assert [each.is_closed for each in DiesAtFirst.made] == [True, False]
    supervisor.close()
    assert DiesAtFirst.made[1].is_closed
