"""The checker of histories finds every way in which a server can go wrong, and no others."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.checker import Checker, same_draw
from tests.faults.history import Event, Recorder, calls_of, read_history
from tests.faults.reference import Reference
from tinkex.engine.null import NullEngine

Step = tuple[str, dict[str, Any]]
RUN = "r"


def reference(folder: Path) -> Reference:
    folder.mkdir(parents=True)
    return Reference(NullEngine(), folder, "null")


def script(seed: int, length: int = 40) -> list[Step]:
    """A client's calls on one model, every kind among them."""
    dice = random.Random(seed)
    steps: list[Step] = [
        ("create_model", {"model": "m", "rank": 4, "seed": seed}),
        ("save_ephemeral", {"model": "m", "sampler": "s0"}),
        ("save_state", {"model": "m", "name": "c0"}),
        ("save_state", {"model": "m", "name": "gone"}),
        ("delete", {"path": f"tinker://{RUN}/weights/gone"}),
    ]
    for number in range(1, length):
        steps += [
            ("forward_backward", {"model": "m", "data": [dice.randrange(50)], "seq": number}),
            ("optim_step", {"model": "m", "learning_rate": dice.choice([1e-3, 1e-4])}),
        ]
        if number % 5 == 0:
            steps += [
                ("save_ephemeral", {"model": "m", "sampler": f"s{number}"}),
                ("sample", {"sampler": f"s{number}", "prompt": [1, 2], "seed": 1, "count": 2}),
                ("sample", {"sampler": "s0", "prompt": [number], "seed": 1, "count": 1}),
                ("save_state", {"model": "m", "name": f"c{number}"}),
                ("list", {"run": RUN}),
                ("resubmit", {"model": "m", "number": number}),
                ("reread", {"request_id": f"m-{number}"}),
            ]
        if number % 17 == 0:
            path = f"tinker://{RUN}/weights/c{number // 5 * 5}"
            steps.append(("load_state", {"model": "m", "path": path, "optimizer": True}))
    return steps


class Server:
    """A server that plays a script; one call goes wrong in the way that is asked for."""

    def __init__(self, folder: Path, fault: str = "", at: int = -1) -> None:
        self._state = reference(folder / "server")
        self._engine = self._state._engine
        self._spare = folder / "spare"
        self._fault, self._at = fault, at
        self._listed: set[str] = set()
        self._answers: dict[str, Any] = {}

    def play(self, steps: list[Step]) -> list[Any]:
        """The answers, in the order of the calls."""
        order = list(range(len(steps)))
        if self._fault == "reordered":
            order[self._at], order[self._at + 1] = order[self._at + 1], order[self._at]
        answers = {n: self._answer(n, *steps[n]) for n in order}
        return [answers[n] for n in range(len(steps))]

    def _answer(self, n: int, name: str, arguments: dict[str, Any]) -> Any:
        is_wrong = n == self._at
        if is_wrong and self._fault == "lost":
            self._engine.save_adapter("m", self._spare, "all")
            answer = self._call(name, arguments)
            self._engine.load_adapter("m", "null", self._spare, "all")
            return answer
        if is_wrong and self._fault == "doubled":
            self._call(name, arguments)
            return self._call(name, arguments)
        answer = self._call(name, arguments)
        if is_wrong and self._fault == "stale":
            return self._stale(name, arguments, answer)
        return answer

    def _stale(self, name: str, arguments: dict[str, Any], answer: Any) -> Any:
        if name == "sample":
            return self._state.sample(**{**arguments, "sampler": "s0"})
        if name == "list":
            return [*answer, f"tinker://{RUN}/weights/gone"]
        if name == "resubmit":
            return "m-other"
        assert name == "reread"
        return {**answer, "loss": 0.0}

    def _call(self, name: str, arguments: dict[str, Any]) -> Any:
        if name == "list":
            return sorted(self._listed)
        if name == "resubmit":
            return f"m-{arguments['number']}"
        if name == "reread":
            return self._answers[arguments["request_id"]]
        if name == "save_state":
            path = f"tinker://{RUN}/weights/{arguments['name']}"
            self._state.save_state("m", path)
            self._listed.add(path)
            return {"path": path}
        if name == "delete":
            self._listed.discard(arguments["path"])
        known = {key: value for key, value in arguments.items() if key != "seq"}
        answer = getattr(self._state, name)(**known)
        if "seq" in arguments:
            answer = {**answer, "request_id": f"m-{arguments['seq']}"}
            self._answers[answer["request_id"]] = answer
        return answer


def history(steps: list[Step], answers: list[Any]) -> list[Event]:
    """The history of a client that got these answers."""
    events = []
    for n, ((name, arguments), answer) in enumerate(zip(steps, answers, strict=True)):
        common = {"client": "c", "number": n, "name": name}
        events.append(Event(**common, phase="invoke", at=2.0 * n, arguments=arguments))
        events.append(Event(**common, phase="ok", at=2.0 * n + 1, value=answer))
    return events


@pytest.fixture
def check(tmp_path: Path) -> Callable[[list[Event]], list[str]]:
    return lambda events: Checker(reference(tmp_path / "checker")).check(events)


def nth(steps: list[Step], name: str, dice: random.Random, *, before: int) -> int:
    return dice.choice([n for n, step in enumerate(steps[:before]) if step[0] == name])


@pytest.mark.parametrize("seed", range(5))
def test_a_right_history_is_found_right(tmp_path: Path, check: Any, seed: int) -> None:
    steps = script(seed)
    assert check(history(steps, Server(tmp_path).play(steps))) == []


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ("lost", "forward_backward"),
        ("lost", "optim_step"),
        ("lost", "load_state"),
        ("doubled", "forward_backward"),
        ("doubled", "optim_step"),
        ("reordered", "forward_backward"),
        ("reordered", "optim_step"),
        ("stale", "sample"),
        ("stale", "list"),
        ("stale", "resubmit"),
        ("stale", "reread"),
    ],
)
def test_a_wrong_history_is_found_wrong(
    tmp_path: Path, check: Any, fault: str, name: str, seed: int
) -> None:
    steps = script(seed)
    at = nth(steps, name, random.Random(seed), before=len(steps) - 12)
    if (fault, name) == ("doubled", "optim_step"):
        steps.insert(at, ("forward_backward", {"model": "m", "data": [3], "seq": 1000}))
        at += 1  # the second step finds no gradients, answers 'skipped' and shows at once
    if name == "sample" and steps[at][1]["sampler"] == "s0":
        at -= 1
    answers = Server(tmp_path, fault, at).play(steps)
    assert check(history(steps, answers)), f"call {at} was {fault}"


def test_a_save_that_is_not_listed_is_lost(tmp_path: Path, check: Any) -> None:
    steps = script(1)
    answers = Server(tmp_path).play(steps)
    place = next(n for n, step in enumerate(steps) if step[0] == "list")
    answers[place] = answers[place][1:]
    assert any("is not listed" in each for each in check(history(steps, answers)))


def test_a_checkpoint_that_was_never_saved_is_wrong(tmp_path: Path, check: Any) -> None:
    steps = script(1)
    answers = Server(tmp_path).play(steps)
    place = next(n for n, step in enumerate(steps) if step[0] == "list")
    answers[place] = [*answers[place], f"tinker://{RUN}/weights/ghost"]
    assert any("no call saved" in each for each in check(history(steps, answers)))


def test_no_answer_is_a_loss_and_an_error_a_failure(tmp_path: Path, check: Any) -> None:
    steps = script(1, length=3)
    events = history(steps, Server(tmp_path).play(steps))
    (found,) = check(events[:-1])
    assert "never got an answer" in found


def test_an_error_is_a_failure_unless_it_is_allowed(tmp_path: Path) -> None:
    steps: list[Step] = [("create_model", {"model": "m", "rank": 4, "seed": 1})]
    bad = ("forward_backward", {"model": "m", "data": [1]})
    events = history([*steps, bad], [None, None])
    failed = Event(client="c", number=1, phase="fail", at=9, name=bad[0], value={"code": "x"})
    events[-1] = failed
    strict = Checker(reference(tmp_path / "a"))
    assert "ended with" in strict.check(events)[0]
    lenient = Checker(reference(tmp_path / "b"), may_fail=lambda call: True)
    assert lenient.check(events) == []
    refused = Event(
        client="c",
        number=1,
        phase="invoke",
        at=events[2].at,
        name=bad[0],
        arguments={**bad[1], "is_refused": True},
    )
    assert Checker(reference(tmp_path / "c")).check([*events[:2], refused, failed]) == []
    answered = Event(client="c", number=1, phase="ok", at=9, name=bad[0])
    found = Checker(reference(tmp_path / "d")).check([*events[:2], refused, answered])
    assert "should have been refused" in found[0]


def test_what_was_deleted_cannot_be_loaded(tmp_path: Path, check: Any) -> None:
    steps = script(1, length=2)
    path = f"tinker://{RUN}/weights/gone"
    steps.append(("create_from", {"model": "n", "path": path, "optimizer": False}))
    answers = [*Server(tmp_path).play(steps[:-1]), None]
    assert any("stale" in each for each in check(history(steps, answers)))


def test_histories_of_several_clients_are_read_in_order_of_time(tmp_path: Path) -> None:
    recorders = [Recorder(tmp_path / name, name) for name in ("a", "b")]
    first = recorders[0].invoke("forward", model="m")
    second = recorders[1].invoke("forward", model="n")
    recorders[1].ok(second, "forward", {"loss": 0.1})
    recorders[0].fail(first, "forward", ValueError("no"))
    for each in recorders:
        each.close()
    events = read_history([tmp_path / "b", tmp_path / "a"])
    assert [(e.client, e.phase) for e in events] == [
        ("a", "invoke"),
        ("b", "invoke"),
        ("b", "ok"),
        ("a", "fail"),
    ]
    calls = calls_of(events)
    assert [call.is_ok for call in calls] == [False, True]
    assert str(calls[1]) == "b#1 forward(model='n')"


@pytest.mark.parametrize(
    ("tokens", "is_same"),
    [
        ([177, 53, 205], True),
        ([177, 53, 206], True),  # the draw fell on the edge
        ([177, 54, 9], True),  # so it did here, and what follows is another text
        ([177, 53, 207], False),
        ([176, 53, 205, 1], True),
        ([177, 53], False),
        ([12, 53, 205], False),
    ],
)
def test_a_draw_on_an_edge_is_distinguished_from_a_wrong_one(
    tokens: list[int], is_same: bool
) -> None:
    assert same_draw(tokens, [177, 53, 205]) is is_same
