"""Clients that train, sample, save, load, list and delete until told to stop, and write it down.

    python -m tests.faults.workload '<json of a Task>'

Any of the official client, ours, or plain HTTP. What a client does depends on its seed alone; how
far it comes depends on how long it is let. Clients have their default settings, but that ours is
asked to retry samples. Nothing is judged here: that is the checker's part.
"""

from __future__ import annotations

import importlib
import os
import random
import sys
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from tests.faults.history import Recorder
from tests.faults.plain_walker import PlainWalker
from tests.faults.reference import digest, ids_of

WINDOW = 6  # calls on their way at once
MODELS = 3


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What one process does."""

    library: str  # tinker, tinkex or plain
    base_url: str
    api_key: str
    base_model: str
    seed: int
    history: str  # a folder
    stop_file: str
    walkers: int = 2
    at_least: int = 30  # steps, also if stopped before
    has_one_run: bool = False  # whether no two models are worked on at the same time


class Walker:
    """One client on a seeded walk, through an SDK."""

    def __init__(self, library: Any, task: Task, name: str) -> None:
        self._library, self._types, self._task = library, library.types, task
        self._dice = random.Random(f"{task.seed}/{name}")
        self._name = name
        self._recorder = Recorder(Path(task.history) / f"{name}.jsonl", name)
        is_ours = library.__name__ == "tinkex"
        self._retries = {"retry_config": library.RetryConfig()} if is_ours else {}
        self._open: deque[tuple[int, str, Any, Callable[[Any], Any]]] = deque()
        self._count = 0
        self._asked = ""  # the model that was asked last
        self._models: dict[str, Any] = {}
        self._samplers: dict[str, Any] = {}
        self._paths: list[str] = []  # of states that are never deleted
        self._doomed: list[str] = []
        self._service: Any = None
        self._rest = library.RestClient(base_url=task.base_url, api_key=task.api_key)

    def go(self) -> None:
        """Walks until told to stop, then looks at everything once more."""
        steps = 0
        self._begin()
        while steps < self._task.at_least or not Path(self._task.stop_file).exists():
            self._step()
            steps += 1
        self._look_at_everything()
        self._end()
        self._recorder.close()

    def _begin(self) -> None:
        self._service = self._library.ServiceClient(
            base_url=self._task.base_url, api_key=self._task.api_key
        )
        self._new_model()
        sampler = self._label("base")
        opened = self._now(
            "open_sampler",
            {"sampler": sampler, "path": None},
            lambda: self._service.create_sampling_client(
                base_model=self._task.base_model, **self._retries
            ),
        )
        self._samplers = {sampler: opened}

    def _end(self) -> None:
        self._settle_all()
        self._now("end_session", {}, self._close)
        self._models.clear()

    def _close(self) -> None:
        # A server that does not come back within ten seconds ends the session by itself: a client
        # gives up to tell it, so that its program can end.
        with suppress(self._library.APIConnectionError):
            self._service.close("success").result()

    def _step(self) -> None:
        kinds: dict[Callable[[], None], int] = {
            self._train: 10,
            self._forward: 1,
            self._sample: 5,
            self._snapshot: 3,
            self._save: 3,
            self._save_sampler: 1,
            self._load: 1,
            self._delete: 1,
            self._list: 1,
            self._new_model: 1,
            self._new_from: 1,
            self._renew: 1,
        }
        (chosen,) = self._dice.choices(list(kinds), list(kinds.values()))
        chosen()

    def _train(self) -> None:
        model, training = self._any_model()
        for _ in range(self._dice.randint(1, 2)):
            data = [self._dice.randrange(60) for _ in range(self._dice.randint(1, 3))]
            self._ask(
                "forward_backward",
                {"model": model, "data": data},
                lambda data=data: training.forward_backward(self._data(data), "cross_entropy"),
                _training_value,
            )
        rate = self._dice.choice([1e-4, 1e-3])
        self._ask(
            "optim_step",
            {"model": model, "learning_rate": rate},
            lambda: training.optim_step(self._types.AdamParams(learning_rate=rate)),
            lambda result: dict(result.metrics),
        )

    def _forward(self) -> None:
        model, training = self._any_model()
        data = [self._dice.randrange(60)]
        self._ask(
            "forward",
            {"model": model, "data": data},
            lambda: training.forward(self._data(data), "cross_entropy"),
            _training_value,
        )

    def _sample(self) -> None:
        sampler = self._dice.choice(list(self._samplers))
        prompt = [self._dice.randrange(1, 60) for _ in range(self._dice.randint(1, 4))]
        for _ in range(self._dice.randint(1, 3)):
            request = {
                "prompt": prompt,
                "seed": self._dice.randrange(1000),
                "count": self._dice.randint(1, 2),
            }
            self._ask(
                "sample",
                {"sampler": sampler, **request},
                lambda request=request: self._samplers[sampler].sample(
                    self._types.ModelInput.from_ints(prompt),
                    request["count"],
                    self._types.SamplingParams(max_tokens=3, seed=request["seed"]),
                ),
                _sampling_value,
            )

    def _snapshot(self) -> None:
        model, training = self._any_model()
        sampler = self._label("sampler")
        self._samplers[sampler] = self._now(
            "save_ephemeral",
            {"model": model, "sampler": sampler},
            lambda: training.save_weights_and_get_sampling_client(**self._retries),
        )
        if len(self._samplers) > 8:
            del self._samplers[self._dice.choice(list(self._samplers))]
        self._sample()

    def _save(self) -> None:
        model, training = self._any_model()
        name = self._label("state")
        kind = self._dice.choice(["kept", "kept", "doomed", "brief", "latest"])
        options = {"brief": {"ttl_seconds": 1}, "latest": {"overwrite": True}}.get(kind, {})
        name = "latest" if kind == "latest" else name
        saved = self._now(
            "save_state",
            {"model": model, "name": name, **options},
            lambda: training.save_state(name, **options).result(),
            _path_value,
        )
        if kind in ("kept", "doomed"):
            (self._paths if kind == "kept" else self._doomed).append(saved.path)

    def _save_sampler(self) -> None:
        model, training = self._any_model()
        name, sampler = self._label("sampler"), self._label("opened")
        saved = self._now(
            "save_sampler",
            {"model": model, "name": name},
            lambda: training.save_weights_for_sampler(name).result(),
            _path_value,
        )
        self._samplers[sampler] = self._now(
            "open_sampler",
            {"sampler": sampler, "path": saved.path},
            lambda: self._service.create_sampling_client(model_path=saved.path, **self._retries),
        )
        self._sample()

    def _load(self) -> None:
        if not self._paths:
            return
        model, training = self._any_model()
        path, optimizer = self._dice.choice(self._paths), self._dice.random() < 0.5
        load = training.load_state_with_optimizer if optimizer else training.load_state
        self._ask(
            "load_state",
            {"model": model, "path": path, "optimizer": optimizer},
            lambda: load(path),
            lambda _result: None,
        )

    def _delete(self) -> None:
        if self._doomed:
            path = self._doomed.pop(self._dice.randrange(len(self._doomed)))
            delete = self._rest.delete_checkpoint_from_tinker_path
            self._now("delete", {"path": path}, lambda: delete(path).result())

    def _list(self) -> None:
        for training in list(self._models.values()):
            run = training.model_id
            self._now(
                "list",
                {"run": run},
                lambda run=run: self._rest.list_checkpoints(run).result(),
                lambda found: sorted(each.tinker_path for each in found.checkpoints),
            )

    def _new_model(self) -> None:
        model, seed = self._label("model"), self._dice.randrange(1000)
        self._models[model] = self._now(
            "create_model",
            {"model": model, "rank": 4, "seed": seed},
            lambda: self._service.create_lora_training_client(
                self._task.base_model, rank=4, seed=seed
            ),
        )
        self._forget_one()

    def _new_from(self) -> None:
        if self._paths:
            self._make_from(self._dice.choice(self._paths), self._dice.random() < 0.5)
            self._forget_one()

    def _make_from(self, path: str, optimizer: bool) -> str:
        service, model = self._service, self._label("model")
        make = service.create_training_client_from_state
        if optimizer:
            make = service.create_training_client_from_state_with_optimizer
        self._models[model] = self._now(
            "create_from",
            {"model": model, "path": path, "optimizer": optimizer},
            lambda: make(path),
        )
        return model

    def _renew(self) -> None:
        """Ends the session and begins another, now and then."""
        if self._dice.random() < 0.5:
            self._end()
            self._samplers.clear()
            self._begin()

    def _look_at_everything(self) -> None:
        """Every checkpoint is listed and loads as it was saved; every model goes on."""
        self._settle_all()
        self._list()
        for path in self._paths[-4:]:
            model = self._make_from(path, optimizer=True)
            self._forward_of(model)
        for model in list(self._models):
            self._forward_of(model)
        self._settle_all()

    def _forward_of(self, model: str) -> None:
        training = self._models[model]
        self._ask(
            "forward",
            {"model": model, "data": [1, 2]},
            lambda: training.forward(self._data([1, 2]), "cross_entropy"),
            _training_value,
        )

    def _forget_one(self) -> None:
        if len(self._models) > MODELS:
            del self._models[next(iter(self._models))]

    def _any_model(self) -> tuple[str, Any]:
        return self._dice.choice(list(self._models.items()))

    def _data(self, numbers: list[int]) -> list[Any]:
        data = []
        for number in numbers:
            ids = ids_of(number)
            inputs = {"target_tokens": ids[1:], "weights": [1.0] * (len(ids) - 1)}
            model_input = self._types.ModelInput.from_ints(ids[:-1])
            data.append(self._types.Datum(model_input=model_input, loss_fn_inputs=inputs))
        return data

    def _label(self, kind: str) -> str:
        self._count += 1
        return f"{self._name}-{kind}-{self._count}"

    def _ask(
        self, name: str, arguments: dict[str, Any], submit: Callable[[], Any], value: Any
    ) -> None:
        """Makes a call and goes on; its answer is looked at later."""
        model = arguments.get("model", self._asked)
        if model != self._asked and self._task.has_one_run:
            self._settle_all()
        self._asked = model
        number = self._recorder.invoke(name, **arguments)
        try:
            future = submit()
        except Exception as error:
            self._recorder.fail(number, name, error)
            raise
        self._open.append((number, name, future, value))
        while len(self._open) > WINDOW:
            self._settle()

    def _settle(self) -> None:
        number, name, future, value = self._open.popleft()
        try:
            self._recorder.ok(number, name, value(future.result()))
        except Exception as error:
            self._recorder.fail(number, name, error)

    def _settle_all(self) -> None:
        while self._open:
            self._settle()

    def _now(
        self,
        name: str,
        arguments: dict[str, Any],
        call: Callable[[], Any],
        value: Callable[[Any], Any] = lambda _result: None,
    ) -> Any:
        """The answer to a call that is waited for."""
        number = self._recorder.invoke(name, **arguments)
        try:
            result = call()
            self._recorder.ok(number, name, value(result))
        except Exception as error:
            self._recorder.fail(number, name, error)
            raise
        return result


def _training_value(result: Any) -> dict[str, Any]:
    logprobs = [list(each["logprobs"].data) for each in result.loss_fn_outputs]
    return {"loss": result.metrics["loss:sum"], "logprobs": digest(logprobs)}


def _sampling_value(result: Any) -> dict[str, Any]:
    return {
        "tokens": [list(map(int, each.tokens)) for each in result.sequences],
        "logprobs": digest([list(each.logprobs) for each in result.sequences]),
    }


def _path_value(result: Any) -> dict[str, str]:
    return {"path": result.path}


def run(task: Task) -> None:
    """All walkers of the task at once; the first exception ends the program."""
    names = [f"{task.library}{number}" for number in range(task.walkers)]
    if task.library == "plain":
        walkers: list[Any] = [PlainWalker(task, name) for name in names]
    else:
        library = importlib.import_module(task.library)
        walkers = [Walker(library, task, name) for name in names]
    with ThreadPoolExecutor(len(walkers)) as pool:
        for done in [pool.submit(each.go) for each in walkers]:
            done.result()


if __name__ == "__main__":
    run(msgspec.json.decode(sys.argv[1], type=Task))
    print("done", flush=True)
    os._exit(0)  # the official client's own threads sometimes abort an orderly end
