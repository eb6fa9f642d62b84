"""Checks a history against the reference: nothing lost, nothing twice, in order, nothing stale.

Every answer must be the one a perfect server would have given. Numbers are compared bit by bit,
so an operation that was lost, applied twice or out of turn shows in all that follow it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.faults.history import Call, Event, calls_of
from tests.faults.reference import Reference, Refused

_PLAIN = {
    "create_model",
    "create_from",
    "forward",
    "forward_backward",
    "optim_step",
    "load_state",
    "save_ephemeral",
    "open_sampler",
    "sample",
    "unload",
}
_ASIDE = {"seq", "is_refused"}  # told by the client for the checker's sake


class Checker:
    """Goes through a history once. `may_fail` says which errors are allowed.

    Sampled logprobs of a real model depend a little on what is sampled beside them; without
    `with_sampled_logprobs` only the tokens are compared. Even of those one may be the next one in
    the vocabulary, if the number drawn fell on the edge between the two.
    """

    def __init__(
        self,
        reference: Reference,
        *,
        may_fail: Callable[[Call], bool] = lambda _call: False,
        with_sampled_logprobs: bool = True,
    ) -> None:
        self._reference = reference
        self._may_fail = may_fail
        self._with_sampled_logprobs = with_sampled_logprobs
        self._answers: dict[str, Any] = {}  # what each request id was answered with
        self._requests: dict[tuple[str, int], str] = {}  # the request id of each number
        self._saves: dict[str, Call] = {}
        self._deletions: dict[str, Call] = {}
        self.violations: list[str] = []

    def check(self, events: list[Event]) -> list[str]:
        """Everything that a perfect server would not have done."""
        for call in calls_of(events):
            if call.ended is None:
                self._blame(call, "lost: it never got an answer")
            else:
                self._check(call)
        return self.violations

    def _check(self, call: Call) -> None:
        assert call.ended is not None
        if call.ended.phase == "fail":
            self._check_failure(call)
            return
        try:
            expected = self._run(call)
        except Refused as refusal:
            self._blame(call, f"stale: it was answered, but {refusal}")
            return
        value = _numbers(call.ended.value)
        if call.name == "sample" and not self._with_sampled_logprobs:
            value, expected = value["tokens"], expected["tokens"]
            if len(value) == len(expected) and all(map(same_draw, value, expected)):
                return
        if expected is not None and value != expected:
            self._blame(call, f"wrong: it got {value}, not {expected}")

    def _check_failure(self, call: Call) -> None:
        """An error is right where a perfect server gives one, and where the test allows it."""
        assert call.ended is not None
        if self._may_fail(call):
            return
        if call.begun.arguments.get("is_refused"):
            return
        self._blame(call, f"failed: it ended with {call.ended.value}")

    def _run(self, call: Call) -> Any:
        """What the call should have been answered with; None where the answer has no content."""
        assert call.ended is not None
        arguments = {
            k: v for k, v in call.begun.arguments.items() if k not in ("seq", "is_refused")
        }
        if call.begun.arguments.get("is_refused"):
            raise Refused("it should have been refused")
        if call.name in _PLAIN:
            self._note_request(call)
            return getattr(self._reference, call.name)(**arguments)
        return getattr(self, f"_{call.name}")(call, **arguments)

    def _note_request(self, call: Call) -> None:
        """Remembers under which request id the call's number was answered, and with what."""
        assert call.ended is not None
        value = call.ended.value
        if isinstance(value, dict) and "request_id" in value:
            request_id = value["request_id"]
            model = call.begun.arguments.get("model") or call.begun.arguments["sampler"]
            self._requests[model, call.begun.arguments["seq"]] = request_id
            self._answers[request_id] = value

    def _save_state(self, call: Call, model: str, name: str, **_options: object) -> None:
        self._saved(call, self._reference.save_state, model, name)

    def _save_sampler(self, call: Call, model: str, name: str) -> None:
        self._saved(call, self._reference.save_sampler, model, name)

    def _saved(self, call: Call, save: Callable[[str, str], None], model: str, name: str) -> None:
        assert call.ended is not None
        self._note_request(call)
        path = call.ended.value["path"]
        if not path.endswith(f"/{name}"):
            self._blame(call, f"wrong: it was saved as {path}")
        save(model, path)
        self._saves[path] = call
        self._deletions.pop(path, None)

    def _copy(self, call: Call, path: str) -> None:
        assert call.ended is not None
        copy = call.ended.value["path"]
        self._reference.copy(path, copy)
        self._saves[copy] = call

    def _delete(self, call: Call, path: str) -> None:
        self._reference.delete(path)
        self._deletions[path] = call

    def _list(self, call: Call, run: str) -> None:
        """Exactly what was saved before and not deleted; what was on its way may be there."""
        assert call.ended is not None
        listed = set(call.ended.value)
        begun, ended = call.begun.at, call.ended.at
        for path, save in self._saves.items():
            if not path.startswith(f"tinker://{run}/"):
                continue
            deletion = self._deletions.get(path)
            may_expire = save.begun.arguments.get("ttl_seconds") is not None
            was_there = _end(save) < begun and (deletion is None or deletion.begun.at > ended)
            if was_there and path not in listed and not may_expire:
                self._blame(call, f"lost: {path} is not listed")
            if deletion is not None and _end(deletion) < begun and path in listed:
                self._blame(call, f"stale: {path} was deleted and is listed")
        self._unknown_in_list(call, listed)

    def _unknown_in_list(self, call: Call, listed: set[str]) -> None:
        for path in listed - self._saves.keys():
            self._blame(call, f"wrong: no call saved {path}")

    def _reread(self, call: Call, request_id: str) -> None:
        """An answer that was given stays what it is."""
        assert call.ended is not None
        if call.ended.value != self._answers[request_id]:
            self._blame(
                call, f"stale: it was {self._answers[request_id]}, now it is {call.ended.value}"
            )

    def _resubmit(self, call: Call, model: str, number: int) -> None:
        """The same number is the same request."""
        assert call.ended is not None
        known = self._requests[model, number]
        if call.ended.value != known:
            self._blame(call, f"doubled: {known} became {call.ended.value}")

    def _end_session(self, call: Call) -> None:
        pass

    def _blame(self, call: Call, why: str) -> None:
        self.violations.append(f"{call}: {why}")


def _numbers(value: Any) -> Any:
    """The answer without the name of the request."""
    if isinstance(value, dict):
        return {key: each for key, each in value.items() if key != "request_id"}
    return value


def _end(call: Call) -> float:
    assert call.ended is not None
    return call.ended.at


def same_draw(tokens: list[int], expected: list[int]) -> bool:
    """Whether they are the same up to a draw on an edge; what follows one follows from it."""
    pairs = zip(tokens, expected, strict=False)
    first = next(((got, wanted) for got, wanted in pairs if got != wanted), None)
    if first is None:
        return len(tokens) == len(expected)
    return abs(first[0] - first[1]) == 1
