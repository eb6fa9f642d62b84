"""A client of plain HTTP on a seeded walk: it numbers its requests itself, sends some twice, reads
answers again, cancels, copies and unloads. A call is repeated until it is answered."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from tests.faults.history import Recorder
from tests.faults.reference import digest, ids_of
from tinkex.types.datum import Datum
from tinkex.types.model_input import ModelInput
from tinkex.wire import protobuf

if TYPE_CHECKING:
    from tests.faults.workload import Task

PROTOBUF = "application/x-protobuf"
PATIENCE_S = 60.0
_PAUSE_S = 0.05


class NoAnswer(Exception):
    """The server did not answer for a whole minute."""


class PlainWalker:
    """One client with one model after the other."""

    def __init__(self, task: Task, name: str) -> None:
        self._task, self._name = task, name
        self._dice = random.Random(f"{task.seed}/{name}")
        self._recorder = Recorder(Path(task.history) / f"{name}.jsonl", name)
        self._http = httpx.Client(base_url=task.base_url, timeout=60)
        self._model = ""
        self._seq = 0
        self._sent: dict[int, tuple[str, Any]] = {}  # the path and body of each number
        self._answered: list[str] = []
        self._kinds: dict[str, str] = {}  # of the request ids
        self._samples = 0
        self._session = ""

    def go(self) -> None:
        """Walks until told to stop."""
        steps = 0
        while steps < self._task.at_least or not Path(self._task.stop_file).exists():
            if steps % 25 == 0:
                self._renew()
            self._step()
            steps += 1
        self._recorder.close()

    def _renew(self) -> None:
        """Another session with another model; the old model is given up."""
        if self._model:
            number = self._recorder.invoke("unload", model=self._model)
            self._result(self._post("unload_model", {"model_id": self._model}))
            self._recorder.ok(number, "unload")
            self._post(f"sessions/{self._session}/finish", {"reason": {"type": "success"}})
        request = {"tags": [], "user_metadata": {}, "sdk_version": "0.36.0"}
        self._session = self._post("create_session", request)["session_id"]
        self._seq, self._sent, self._answered = 0, {}, []
        self._model = f"{self._session}:train:0"
        seed = self._dice.randrange(1000)
        number = self._recorder.invoke("create_model", model=self._model, rank=4, seed=seed)
        asked_model = {
            "session_id": self._session,
            "model_seq_id": 0,
            "base_model": self._task.base_model,
            "lora_config": {"rank": 4, "seed": seed},
        }
        self._result(self._post("create_model", asked_model))
        self._recorder.ok(number, "create_model")

    def _step(self) -> None:
        kinds = [self._burst] * 5 + [self._again] * 2 + [self._reread] * 2
        self._dice.choice([*kinds, self._copy, self._cancel])()

    def _burst(self) -> None:
        """Several operations, sent in another order than their numbers, then their answers."""
        planned = [self._plan() for _ in range(self._dice.randint(2, 5))]
        order = planned[:]
        self._dice.shuffle(order)
        promises = {each["seq"]: self._post(*self._sent[each["seq"]]) for each in order}
        for each in planned:
            request_id = promises[each["seq"]]["request_id"]
            value = self._value(each["name"], request_id)
            self._recorder.ok(each["number"], each["name"], value)
            self._answered.append(request_id)

    def _plan(self) -> dict[str, Any]:
        self._seq += 1
        seq = self._seq
        if self._dice.random() < 0.6:
            data = [self._dice.randrange(60) for _ in range(2)]
            number = self._recorder.invoke(
                "forward_backward", model=self._model, data=data, seq=seq
            )
            self._sent[seq] = ("forward_backward", self._training_body(seq, data))
            return {"name": "forward_backward", "number": number, "seq": seq}
        rate = self._dice.choice([1e-4, 1e-3])
        number = self._recorder.invoke("optim_step", model=self._model, learning_rate=rate, seq=seq)
        body = {"model_id": self._model, "seq_id": seq, "adam_params": {"learning_rate": rate}}
        self._sent[seq] = ("optim_step", body)
        return {"name": "optim_step", "number": number, "seq": seq}

    def _again(self) -> None:
        """A number that was answered before is sent again."""
        if self._sent:
            seq = self._dice.choice(list(self._sent))
            number = self._recorder.invoke("resubmit", model=self._model, number=seq)
            self._recorder.ok(number, "resubmit", self._post(*self._sent[seq])["request_id"])

    def _reread(self) -> None:
        """An answer that was read before is read again."""
        if self._answered:
            request_id = self._dice.choice(self._answered)
            number = self._recorder.invoke("reread", request_id=request_id)
            self._recorder.ok(number, "reread", self._value(self._kinds[request_id], request_id))

    def _copy(self) -> None:
        """A checkpoint is saved and copied."""
        self._seq += 1
        name = f"copied-{self._seq}"
        number = self._recorder.invoke("save_state", model=self._model, name=name)
        body = {"model_id": self._model, "path": name, "seq_id": self._seq}
        path = self._result(self._post("save_weights", body))["path"]
        self._recorder.ok(number, "save_state", {"path": path})
        number = self._recorder.invoke("copy", path=path)
        copied = self._post("copy_weights", {"source_path": path})["tinker_path"]
        self._recorder.ok(number, "copy", {"path": copied})

    def _cancel(self) -> None:
        """A sample is asked for and called off; it may be quicker than that."""
        session = {"session_id": self._session, "sampling_session_seq_id": 0}
        asked_session = {**session, "base_model": self._task.base_model}
        made = self._post("create_sampling_session", asked_session)
        self._samples += 1
        request = {
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]},
            "sampling_params": {"max_tokens": 3, "seed": 1},
            "num_samples": 1,
            "sampling_session_id": made["sampling_session_id"],
            "seq_id": self._samples,
        }
        promise = self._post("asample", request)
        self._post("cancel_future", {"request_id": promise["request_id"]})
        answer = self._poll(promise["request_id"])
        if answer.headers["content-type"] != PROTOBUF:
            assert answer.json()["code"] == "cancelled", answer.text

    def _value(self, kind: str, request_id: str) -> dict[str, Any]:
        self._kinds[request_id] = kind
        answer = self._poll(request_id)
        if answer.headers["content-type"] == PROTOBUF:
            output = protobuf.decode_forward_backward_output(answer.content)
            logprobs = [each["logprobs"].to_numpy() for each in output.loss_fn_outputs]
            value = {"loss": output.metrics["loss:sum"], "logprobs": digest(logprobs)}
        else:
            value = answer.json().get("metrics", answer.json())
        return {**value, "request_id": request_id}

    def _training_body(self, seq: int, data: list[int]) -> bytes:
        examples = []
        for number in data:
            ids = ids_of(number)
            inputs = {"target_tokens": ids[1:], "weights": [1.0] * (len(ids) - 1)}
            examples.append(Datum(ModelInput.from_ints(ids[:-1]), inputs))
        parts = protobuf.encode_forward_backward_request(
            model_id=self._model,
            seq_id=seq,
            data=examples,
            loss_fn="cross_entropy",
            loss_fn_config=None,
            forward_only=False,
        )
        return b"".join(parts)

    def _result(self, promise: dict[str, Any]) -> Any:
        answer = self._poll(promise["request_id"]).json()
        assert "error" not in answer, answer
        return answer

    def _poll(self, request_id: str) -> httpx.Response:
        while True:
            body = {"request_id": request_id}
            answer = self._send("retrieve_future", body, {"Accept": PROTOBUF})
            if answer.status_code != 408:
                assert answer.status_code == 200, answer.text
                return answer

    def _post(self, path: str, body: Any) -> Any:
        answer = self._send(path, body, {})
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text}"
        return answer.json()

    def _send(self, path: str, body: Any, headers: dict[str, str]) -> httpx.Response:
        """The first answer that is not the server's trouble."""
        deadline = time.monotonic() + PATIENCE_S
        sent: dict[str, Any] = {"json": body}
        if isinstance(body, bytes):
            sent = {"content": body}
            headers = {**headers, "Content-Type": PROTOBUF}
        while time.monotonic() < deadline:
            try:
                answer = self._http.post(
                    f"/api/v1/{path}",
                    headers={"X-API-Key": self._task.api_key, **headers},
                    **sent,
                )
                if answer.status_code < 500:
                    return answer
            except httpx.TransportError:
                pass
            time.sleep(_PAUSE_S)
        raise NoAnswer(path)
