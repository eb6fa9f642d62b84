"""The engine of a standby is there when it is needed, or is started then."""

from __future__ import annotations

import threading

import pytest

from tests.support.waiting import wait_until
from tinkex.engine.interface import EngineFailure, EngineUserError
from tinkex.engine.null import NullEngine
from tinkex.engine.options import EngineOptions
from tinkex.engine.process.local import EngineProcess
from tinkex.server.models.warm_engine import WarmEngine

OPTIONS = EngineOptions(models={"null": ""}, device="null")


def test_the_prepared_engine_is_given_once() -> None:
    made: list[NullEngine] = []
    has_started = threading.Event()

    def start() -> NullEngine:
        made.append(NullEngine(("null",)))
        has_started.set()
        return made[-1]

    warm = WarmEngine(start)
    warm.prepare()
    assert has_started.wait(60)
    assert warm() is made[0]
    assert warm() is made[1]


def test_an_engine_that_died_meanwhile_is_replaced() -> None:
    made: list[EngineProcess] = []

    def start() -> EngineProcess:
        made.append(EngineProcess(OPTIONS))
        return made[-1]

    warm = WarmEngine(start)
    warm.prepare()
    wait_until(lambda: bool(made))
    made[0]._process.kill()
    wait_until(lambda: made[0].is_gone)
    with warm() as engine:  # type: ignore[attr-defined]
        assert engine is made[1]
        assert engine.models()


@pytest.mark.parametrize(
    ("error", "is_fatal"),
    [
        (EngineUserError("no such folder", code="bad-model-folder"), True),
        (EngineFailure("It died.", code="engine-died"), False),
    ],
)
def test_only_a_wrong_model_is_fatal(error: Exception, is_fatal: bool) -> None:
    errors = [error]

    def start() -> NullEngine:
        if errors:
            raise errors.pop()
        return NullEngine(("null",))

    warm = WarmEngine(start)
    warm.prepare()
    wait_until(lambda: not errors)
    if is_fatal:
        wait_until(lambda: warm.fatal is error)
    assert warm().models(), "it is tried again when it is needed"


@pytest.mark.parametrize("is_early", [True, False])
def test_a_prepared_engine_that_is_not_needed_ends(is_early: bool) -> None:
    made: list[EngineProcess] = []
    may_start = threading.Event()

    def start() -> EngineProcess:
        may_start.wait(60)
        made.append(EngineProcess(OPTIONS))
        return made[-1]

    warm = WarmEngine(start)
    warm.prepare()
    if is_early:
        warm.close()
    may_start.set()
    wait_until(lambda: bool(made))
    if not is_early:
        warm.close()
    wait_until(lambda: not made[0].is_alive)
