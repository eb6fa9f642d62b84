"""What the scheduler's tests are made of."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tests.server.driving import training_body
from tinkex.engine.interface import Engine
from tinkex.scheduler import SchedulerConfig
from tinkex.scheduler.adapters.data_folders import DataFolders
from tinkex.scheduler.operation_bodies import LoadCommand, SaveCommand
from tinkex.scheduler.scheduler import Scheduler
from tinkex.store import Database, models, operations, results, samplers, samples, sessions
from tinkex.store.models import Model
from tinkex.store.operations import NewOperation, Operation
from tinkex.store.results import Result
from tinkex.store.samplers import SamplerRecord
from tinkex.store.samples import NewSample
from tinkex.types.model_input import ModelInput
from tinkex.types.optimizers import AdamParams
from tinkex.types.requests import OptimStepRequest, SampleRequest
from tinkex.types.sampling import SamplingParams
from tinkex.wire import json


def operation(
    model_id: str, seq_id: int, *, kind: str = "forward_backward", cost: int = 100, owner: str = "a"
) -> Operation:
    """An operation that is only looked at."""
    return Operation(
        request_id=f"{model_id}-{seq_id}",
        owner=owner,
        model_id=model_id,
        seq_id=seq_id,
        kind=kind,
        cost=cost,
        state="queued",
        created_at=0.0,
    )


class Bench:
    """A store and a scheduler without HTTP. `others` are the engines of further slots."""

    def __init__(
        self,
        folder: Path,
        engine: Callable[[], Engine],
        config: SchedulerConfig | None = None,
        *others: Callable[[], Engine],
    ) -> None:
        self.db = Database(f"sqlite:///{folder / 'bench.db'}")
        self._done = threading.Condition()
        self.order: list[str] = []
        self.scheduler = Scheduler(
            self.db,
            DataFolders(folder),
            [engine, *others],
            config or SchedulerConfig(),
            self._publish,
            announce=lambda _operations, _state: None,
        )

    def start(self) -> Bench:
        """Begins to work."""
        self.scheduler.start()
        return self

    def close(self) -> None:
        """Ends cleanly."""
        self.scheduler.stop()
        self.db.close()

    def model(self, owner: str = "a", *, rank: int = 8) -> str:
        """A new model; its creation is queued."""
        session_id = self.db.write(
            sessions.create, owner, tags=[], user_metadata={}, sdk_version="0.36.0"
        )
        now = time.time()
        model = Model(
            model_id=f"{session_id}:train:0",
            owner=owner,
            session_id=session_id,
            base_model="null",
            engine_model="null",
            spec=f'{{"rank":{rank},"seed":1}}',
            optimizer_config={"type": "adamw"},
            user_metadata=None,
            state="creating",
            created_at=now,
            last_request_at=now,
        )
        self.db.write(models.insert, model)
        self.submit(model.model_id, 0, "create_model", b"{}", owner)
        return model.model_id

    def submit(
        self, model_id: str, seq_id: int, kind: str, body: bytes, owner: str = "a", cost: int = 10
    ) -> str:
        """The request id of an operation, logged and scheduled."""
        new = NewOperation(
            owner=owner,
            model_id=model_id,
            seq_id=seq_id,
            kind=kind,
            body=body,
            digest=hashlib.sha256(body).digest(),
            cost=cost,
        )
        appended = self.db.write(operations.append, new)
        if appended.is_new:
            self.scheduler.enqueue(appended.operation)
        return appended.operation.request_id

    def train(self, model_id: str, seq_id: int, owner: str = "a", cost: int = 10) -> str:
        """A forward_backward."""
        body = training_body(model_id, seq_id)
        return self.submit(model_id, seq_id, "forward_backward", body, owner, cost)

    def forward(self, model_id: str, seq_id: int) -> str:
        """A forward pass alone, which changes nothing."""
        body = training_body(model_id, seq_id, forward_only=True)
        return self.submit(model_id, seq_id, "forward", body)

    def step(self, model_id: str, seq_id: int, owner: str = "a") -> str:
        """An optimizer step."""
        body = json.encode(
            OptimStepRequest(model_id=model_id, seq_id=seq_id, adam_params=AdamParams())
        )
        return self.submit(model_id, seq_id, "optim_step", body, owner)

    def save(self, model_id: str, seq_id: int, name: str = "ckpt") -> str:
        """A saved training state."""
        body = json.encode(SaveCommand(kind="weights", name=name))
        return self.submit(model_id, seq_id, "save_weights", body)

    def load(self, model_id: str, seq_id: int, path: str) -> str:
        """A load of training state."""
        body = json.encode(LoadCommand(path=path, optimizer=True, as_owner="a"))
        return self.submit(model_id, seq_id, "load_weights", body)

    def save_ephemeral(self, model_id: str, seq_id: int) -> str:
        """A snapshot to sample from."""
        session = f"{model_id.partition(':')[0]}:sample:{seq_id}"
        body = json.encode(SaveCommand(kind="sampler_weights", sampling_session_id=session))
        return self.submit(model_id, seq_id, "save_sampler", body)

    def base_sampler(self, owner: str = "a") -> str:
        """A sampling session on the base model."""
        sampler = SamplerRecord(
            sampling_session_id=f"base-{owner}-{time.time_ns()}",
            owner=owner,
            session_id="s",
            base_model="null",
            engine_model="null",
            created_at=time.time(),
        )
        return self.db.write(samplers.insert, sampler).sampling_session_id

    def sample(
        self,
        session: str,
        seq_id: int,
        owner: str = "a",
        *,
        seed: int = 1,
        prompt: tuple[int, ...] = (1, 2, 3),
        max_tokens: int = 4,
    ) -> str:
        """A scored prompt and one continuation."""
        request = SampleRequest(
            prompt=ModelInput.from_ints(prompt),
            sampling_params=SamplingParams(max_tokens=max_tokens, seed=seed),
            sampling_session_id=session,
            seq_id=seq_id,
            prompt_logprobs=True,
        )
        body = json.encode(request)
        new = NewSample(
            owner=owner,
            sampling_session_id=session,
            seq_id=seq_id,
            body=body,
            digest=hashlib.sha256(body).digest(),
            num_samples=1,
            cost=10,
        )
        sample, _ = self.db.write(samples.append, new)
        self.scheduler.enqueue_sample(sample, request)
        return sample.request_id

    def result(self, request_id: str, owner: str = "a", timeout_s: float = 20) -> Result:
        """The result, waited for."""
        deadline = time.monotonic() + timeout_s
        with self._done:
            while True:
                found = self.db.read(results.find, owner, request_id)
                assert found is not None
                if found.result is not None:
                    return found.result
                assert time.monotonic() < deadline, "no result in time"
                self._done.wait(0.5)

    def is_done(self, request_id: str) -> bool:
        """Whether the request has its result."""
        return request_id in self.order

    def answer(self, request_id: str, owner: str = "a") -> Any:
        """A JSON result."""
        return msgspec.json.decode(self.result(request_id, owner).body)

    def _publish(self, finished: dict[str, Result], _sessions: set[str]) -> None:
        with self._done:
            self.order += finished
            self._done.notify_all()
