"""One engine that is started, and started again when it fails."""

from __future__ import annotations

import logging
import os
import signal
import threading

import pytest

from tests.support.waiting import wait_until
from tinkex.engine.errors import ServerEndingError, server_ending
from tinkex.engine.interface import Engine, EngineFailure, ModelInfo
from tinkex.engine.null import NullEngine
from tinkex.engine.options import EngineOptions
from tinkex.engine.process.local import EngineProcess
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


@pytest.mark.parametrize(
    ("error", "num_lines"),
    [(server_ending(), 0), (EngineFailure("no such file", code="engine-failure"), 1)],
    ids=["ending", "failing"],
)
def test_a_start_that_ends_with_the_server_is_not_logged_as_a_failure(
    error: EngineFailure, num_lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The factory of a slot without a worker fails before its supervisor is closed."""
    num_starts = 0

    def start() -> Engine:
        nonlocal num_starts
        num_starts += 1
        raise error

    def use_engine() -> None:
        with pytest.raises(ServerEndingError):
            _ = supervisor.engine

    supervisor = Supervisor(start, "engine of worker-1")
    thread = threading.Thread(target=use_engine)
    with caplog.at_level(logging.ERROR, "tinkex.scheduler.supervisor"):
        thread.start()
        wait_until(lambda: num_starts >= 2)
        supervisor.stop_starting()
        thread.join()
    assert min(len(caplog.records), 1) == num_lines


def test_the_log_says_what_became_of_an_idle_engine(caplog: pytest.LogCaptureFixture) -> None:
    options = EngineOptions(models={"tiny": ""}, device="null")
    supervisor = Supervisor(lambda: EngineProcess(options, ping_s=0.2, hang_s=2.0))
    try:
        idle = supervisor.engine
        assert isinstance(idle, EngineProcess)
        os.kill(idle.pid, signal.SIGSTOP)
        wait_until(lambda: idle.is_gone)
        with caplog.at_level(logging.ERROR, "tinkex.scheduler.supervisor"):
            supervisor.revive()
        errors = [each for each in caplog.records if each.levelno == logging.ERROR]
        (line,) = [each.getMessage() for each in errors]
        assert f"The engine process {idle.pid} did not answer for" in line
        assert supervisor.engine is not idle
    finally:
        supervisor.close()


def test_a_start_that_fails_once_the_supervisor_is_closed_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def start() -> Engine:
        supervisor.stop_starting()
        raise EngineFailure("stopped", code="engine-died")

    supervisor = Supervisor(start)
    with pytest.raises(ServerEndingError):
        _ = supervisor.engine
    assert not caplog.records


class FromElsewhere(NullEngine):
    """A worker that dialled in, and has left."""

    is_remote = True
    worker_name = "gpu-7"
    worker = "gpu-7 at 10.0.0.7:1234, process 5"


def test_a_worker_from_elsewhere_that_leaves_is_named_and_not_said_to_be_restarted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    supervisor = Supervisor(FromElsewhere, "engine of worker-3")
    with caplog.at_level(logging.INFO, "tinkex.scheduler.supervisor"):
        supervisor.engine.close()
        supervisor.revive()
    supervisor.close()
    ready, lost, _ = (record.getMessage() for record in caplog.records)
    assert ready.startswith("Engine of worker-3 (gpu-7) ready")
    assert lost == f"The engine of worker-3 has lost its worker, {FromElsewhere.worker}: " + (
        "It left while it was idle."
    )
