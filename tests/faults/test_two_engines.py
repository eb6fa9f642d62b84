"""Two engine processes under one scheduler, one or the other killed or drained: a perfect server's
answers.

What every client was answered is a history, checked as in the campaigns against whole servers.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.checker import Checker
from tests.faults.history import Recorder, read_history
from tests.faults.reference import Reference, digest, ids_of
from tests.scheduler.work import Bench
from tests.support.soak import amount
from tinkex.engine.interface import Engine
from tinkex.engine.null import NullEngine
from tinkex.engine.options import EngineOptions
from tinkex.engine.process.local import EngineProcess
from tinkex.scheduler import SchedulerConfig
from tinkex.types.datum import Datum
from tinkex.types.model_input import ModelInput
from tinkex.types.optimizers import AdamParams
from tinkex.types.requests import OptimStepRequest
from tinkex.wire import json, protobuf

SEED = 20_261_118
CLIENTS = 4


class Engines:
    """Starts null engines in processes, and remembers them."""

    def __init__(self) -> None:
        self.started: list[EngineProcess] = []

    def __call__(self) -> Engine:
        options = EngineOptions(models={"null": ""}, device="null:0.002")
        self.started.append(EngineProcess(options))
        return self.started[-1]

    def kill(self) -> None:
        """Kills the one that is in use, once there is one."""
        while not self.started[-1].is_alive:
            time.sleep(0.01)
        os.kill(self.started[-1].pid, signal.SIGKILL)


class Client:
    """Trains two models, samples from them, saves and loads them, one call after the other."""

    def __init__(self, work: Bench, history: Path, number: int, steps: int) -> None:
        self._work = work
        self._dice = random.Random(f"{SEED}/{number}")
        self._recorder = Recorder(history, f"client-{number}")
        self._steps = steps
        self._next_seq: dict[str, int] = {}
        self._samplers: list[str] = []
        self._paths: list[str] = []
        self._num_samples = 0
        self.steps_done = 0

    def run(self) -> None:
        for _ in range(2):
            self._create()
        for _ in range(self._steps):
            kinds = [self._train, self._train, self._train, self._snapshot, self._sample]
            self._dice.choice([*kinds, self._sample, self._save, self._load])()
            self.steps_done += 1
        self._recorder.close()

    def _create(self) -> None:
        model = self._work.model()
        self._next_seq[model] = 1
        number = self._recorder.invoke("create_model", model=model, rank=8, seed=1)
        self._recorder.ok(number, "create_model")

    def _call(self, name: str, arguments: dict[str, Any], ask: Callable[[], Any]) -> Any:
        number = self._recorder.invoke(name, **arguments)
        try:
            value = ask()
        except Exception as error:
            self._recorder.fail(number, name, error)
            raise
        self._recorder.ok(number, name, value)
        return value

    def _train(self) -> None:
        model, data = self._model(), [self._dice.randrange(60) for _ in range(2)]
        rate = self._dice.choice([1e-4, 1e-3])
        begun = []
        for kind in ("forward_backward", "forward_backward", "optim_step"):
            seq = self._seq(model)
            if kind == "optim_step":
                arguments: dict[str, Any] = {"model": model, "learning_rate": rate}
                request = OptimStepRequest(
                    model_id=model, seq_id=seq, adam_params=AdamParams(learning_rate=rate)
                )
                body = json.encode(request)
            else:
                arguments, body = {"model": model, "data": data}, _training_body(model, seq, data)
            number = self._recorder.invoke(kind, **arguments)
            begun.append((number, kind, self._work.submit(model, seq, kind, body)))
        for number, kind, request_id in begun:
            result = self._work.result(request_id, timeout_s=60)
            assert result.encoding != "error", result.body
            value = (
                self._work.answer(request_id)["metrics"]
                if kind == "optim_step"
                else _training_value(result.body)
            )
            self._recorder.ok(number, kind, value)

    def _snapshot(self) -> None:
        model = self._model()
        seq = self._seq(model)
        sampler = f"{model.partition(':')[0]}:sample:{seq}"

        def ask() -> None:
            answer = self._work.answer(self._work.save_ephemeral(model, seq))
            assert answer["sampling_session_id"] == sampler

        self._call("save_ephemeral", {"model": model, "sampler": sampler}, ask)
        self._samplers.append(sampler)

    def _sample(self) -> None:
        if not self._samplers:
            return
        sampler, seed = self._dice.choice(self._samplers), self._dice.randrange(1000)
        prompt = [self._dice.randrange(1, 100) for _ in range(4)]
        self._num_samples += 1
        seq = self._num_samples

        def ask() -> dict[str, Any]:
            request_id = self._work.sample(
                sampler, seq, seed=seed, prompt=tuple(prompt), max_tokens=3
            )
            result = self._work.result(request_id, timeout_s=60)
            assert result.encoding != "error", result.body
            return _sampling_value(result.body)

        arguments = {"sampler": sampler, "prompt": prompt, "seed": seed, "count": 1}
        self._call("sample", arguments, ask)

    def _save(self) -> None:
        model = self._model()
        seq = self._seq(model)
        name = f"at-{seq}"

        def ask() -> dict[str, str]:
            return {"path": self._work.answer(self._work.save(model, seq, name))["path"]}

        arguments = {"model": model, "name": name}
        number = self._recorder.invoke("save_state", **arguments)
        value = ask()
        self._recorder.ok(number, "save_state", value)
        self._paths.append(value["path"])

    def _load(self) -> None:
        if not self._paths:
            return
        model, path = self._model(), self._dice.choice(self._paths)
        seq = self._seq(model)

        def ask() -> None:
            answer = self._work.answer(self._work.load(model, seq, path))
            assert answer["path"] == path, answer

        self._call("load_state", {"model": model, "path": path, "optimizer": True}, ask)

    def _model(self) -> str:
        return self._dice.choice(list(self._next_seq))

    def _seq(self, model: str) -> int:
        self._next_seq[model] += 1
        return self._next_seq[model] - 1


def _training_body(model: str, seq: int, numbers: list[int]) -> bytes:
    data = []
    for number in numbers:
        ids = ids_of(number)
        inputs = {"target_tokens": ids[1:], "weights": [1.0] * (len(ids) - 1)}
        data.append(Datum(ModelInput.from_ints(ids[:-1]), inputs))
    parts = protobuf.encode_forward_backward_request(
        model_id=model,
        seq_id=seq,
        data=data,
        loss_fn="cross_entropy",
        loss_fn_config=None,
        forward_only=False,
    )
    return b"".join(parts)


def _training_value(body: bytes) -> dict[str, Any]:
    output = protobuf.decode_forward_backward_output(body)
    logprobs = [list(each["logprobs"].data) for each in output.loss_fn_outputs]
    return {"loss": output.metrics["loss:sum"], "logprobs": digest(logprobs)}


def _sampling_value(body: bytes) -> dict[str, Any]:
    sequences = protobuf.decode_sample_response(body).sequences
    return {
        "tokens": [list(map(int, each.tokens)) for each in sequences],
        "logprobs": digest([list(each.logprobs) for each in sequences]),
    }


@pytest.mark.parametrize("drains", [False, True], ids=["killed", "killed and drained"])
def test_whichever_engine_is_killed_nothing_is_lost_doubled_or_late(
    tmp_path: Path, drains: bool
) -> None:
    folder, reference = tmp_path / "data", tmp_path / "reference"
    folder.mkdir()
    reference.mkdir()
    engines = [Engines(), Engines()]
    config = SchedulerConfig(
        snapshot_after_operations=7, max_adapters=3, max_samplers=3, adapter_idle_s=0.5
    )
    work = Bench(folder, engines[0], config, engines[1])
    work.start()
    assert work.scheduler.wait_ready(60)
    histories = [tmp_path / f"{number}.history" for number in range(CLIENTS)]
    clients = [
        Client(work, path, number, steps=amount(60, 400)) for number, path in enumerate(histories)
    ]
    threads = [threading.Thread(target=each.run) for each in clients]
    for each in threads:
        each.start()
    dice = random.Random(SEED)
    for _ in range(amount(4, 30)):
        goals = [each.steps_done + 2 for each in clients]
        # Until no request is open that was there at the last kill: two would count against it.
        while any(
            thread.is_alive() and client.steps_done < goal
            for thread, client, goal in zip(threads, clients, goals, strict=True)
        ):
            time.sleep(0.01)
        if drains:  # while the models of one go to the other, either of them dies
            drained = dice.randrange(2)
            work.scheduler.workers.resume(1 - drained)
            work.scheduler.workers.drain(drained)
            time.sleep(dice.uniform(0.0, 0.02))
        dice.choice(engines).kill()
    for each in threads:
        each.join()
    work.close()
    checker = Checker(Reference(NullEngine(("null",)), reference, "null"))
    assert checker.check(read_history(histories)) == []
    assert sum(len(each.started) for each in engines) >= 4, "they were killed while they worked"
