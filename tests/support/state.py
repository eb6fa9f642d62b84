"""What a loopback service remembers: sessions, models, samplers, checkpoints, promises.

Holds the two rules every server of the protocol must keep: operations of one model are applied in
the order of their seq_id, whatever order they arrive in; and the same (model, seq_id) again is the
same promise, applied once. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.support.http_server import Response


@dataclass(frozen=True, slots=True)
class Applied:
    """One operation a model has gone through."""

    seq_id: int
    kind: str
    detail: Any = None


@dataclass(slots=True, eq=False)
class Promise:
    """The result of one request, now or later."""

    request_id: str
    kind: str
    content: Any = None
    """What was asked for: the same number with other content is refused."""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    answer: Response | None = None
    answers: int = 0
    """How often a result was set: more than once would be a double application."""
    fetches: int = 0
    is_cancelled: bool = False
    sample_sequence_ids: list[str] | None = None

    def resolve(self, answer: Response) -> None:
        """Set the result."""
        self.answer = answer
        self.answers += 1
        self.done.set()


@dataclass(slots=True, eq=False)
class Operation:
    """A request of a model that waits for its turn."""

    kind: str
    promise: Promise
    apply: Callable[[], tuple[Response, Any]]


@dataclass(slots=True, eq=False)
class Session:
    """One client's session."""

    session_id: str
    api_key: str
    tags: list[str] = field(default_factory=list)
    user_metadata: dict[str, Any] = field(default_factory=dict)
    project_id: str | None = None
    display_name: str | None = None
    finished: dict[str, Any] | None = None
    heartbeats: int = 0
    joined: int = 0


@dataclass(slots=True, eq=False)
class Model:
    """One training run."""

    model_id: str
    session: Session
    base_model: str
    lora_config: dict[str, Any]
    optimizer_config: dict[str, Any]
    user_metadata: dict[str, Any] | None = None
    step: int = 0
    gradients: int = 0
    next_seq_id: int = 1
    history: list[Applied] = field(default_factory=list)
    waiting: dict[int, Operation] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class Sampler:
    """One sampling session: a base model, or a snapshot of a trained one."""

    sampler_id: str
    session: Session
    base_model: str
    model_path: str | None = None
    step: int = 0
    seq_ids: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Checkpoint:
    """Saved weights."""

    tinker_path: str
    model: Model
    step: int
    number: int
    user_metadata: dict[str, str] | None = None
    is_public: bool = False
    ttl_seconds: int | None = None
    files: dict[str, bytes] = field(default_factory=dict)

    @property
    def checkpoint_id(self) -> str:
        """The part of the path after the run, `weights/name`."""
        return self.tinker_path.removeprefix("tinker://").split("/", 1)[1]


class NumberReused(Exception):
    """A seq_id came a second time, for something else."""


class World:
    """Everything there is, and the order in which it changes."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.models: dict[str, Model] = {}
        self.samplers: dict[str, Sampler] = {}
        self.checkpoints: dict[str, Checkpoint] = {}
        self.promises: dict[str, Promise] = {}
        self.held: set[str] = set()
        self._by_key: dict[tuple[Any, ...], Promise] = {}
        self._held_samples: list[Operation] = []
        self._numbers = itertools.count(1)

    def number(self) -> int:
        """A number not given out before."""
        return next(self._numbers)

    def promise(self, kind: str, key: tuple[Any, ...], content: Any) -> tuple[Promise, bool]:
        """The promise of this key, and whether it is new.

        Raises:
            NumberReused: the key stands for another request already.
        """
        known = self._by_key.get(key)
        if known is not None:
            if (known.kind, known.content) != (kind, content):
                raise NumberReused(f"{key} was a {known.kind} with other content.")
            return known, False
        promise = self._by_key[key] = Promise(f"{kind}-{self.number()}", kind, content)
        self.promises[promise.request_id] = promise
        return promise, True

    def queue(self, model: Model, seq_id: int, operation: Operation) -> None:
        """Apply the operation as soon as it is its turn."""
        model.waiting[seq_id] = operation
        self.advance(model)

    def refuse(self, model: Model, seq_id: int) -> None:
        """Count a number as used up by a request that was refused for good."""
        model.refused.add(seq_id)
        self.advance(model)

    def advance(self, model: Model) -> None:
        """Apply what can be applied now."""
        while True:
            if model.next_seq_id in model.refused:
                model.next_seq_id += 1
                continue
            operation = model.waiting.get(model.next_seq_id)
            if operation is None or operation.kind in self.held:
                return
            del model.waiting[model.next_seq_id]
            answer, detail = operation.apply()
            model.history.append(Applied(model.next_seq_id, operation.kind, detail))
            model.next_seq_id += 1
            operation.promise.resolve(answer)

    def run_sample(self, operation: Operation) -> None:
        """Sample now, or when samples are no longer held."""
        if operation.kind in self.held:
            self._held_samples.append(operation)
        else:
            operation.promise.resolve(operation.apply()[0])

    def hold(self, kind: str) -> None:
        """Keep all work of this kind waiting."""
        self.held.add(kind)

    def release(self, kind: str) -> None:
        """Let the work of this kind go on."""
        self.held.discard(kind)
        for model in self.models.values():
            self.advance(model)
        waiting, self._held_samples = self._held_samples, []
        for operation in waiting:
            self.run_sample(operation)
