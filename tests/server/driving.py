"""How the tests speak to a server: configs, plain HTTP calls, and small training data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import msgspec

from tinkex.scheduler import SchedulerConfig
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.types.datum import Datum
from tinkex.types.model_input import ModelInput
from tinkex.wire import protobuf

MODEL = "null"


def null_config(data_dir: Path, **changes: Any) -> ServerConfig:
    """A server with the null engine, quick to give up on holes and to let polls go."""
    config = ServerConfig(
        data_dir=data_dir,
        port=0,
        device="null",
        models=(ServedModel(name=MODEL, source=""), ServedModel(name="org/named", source="")),
        scheduler=SchedulerConfig(hole_grace_s=1.0),
        poll_hold_s=3.0,
        live_stream_s=1.0,
        metadata_only_bytes=2_000,
        reserve_bytes=1 << 20,  # the tests leave hundreds of data folders behind
    )
    return msgspec.structs.replace(config, **changes)


class Http:
    """JSON over HTTP with a key."""

    def __init__(self, client: httpx.Client, api_key: str) -> None:
        self.client = client
        self.api_key = api_key

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        """The answer to one call."""
        return self.client.request(
            method,
            f"/api/v1/{path}",
            json=body,
            headers={"X-API-Key": self.api_key, **headers},
        )

    def call_within(self, timeout_s: float, method: str, path: str, body: Any) -> httpx.Response:
        """The answer to one call, if it comes in time."""
        headers = {"X-API-Key": self.api_key}
        url = f"{self.client.base_url}/api/v1/{path}"
        return httpx.request(method, url, json=body, headers=headers, timeout=timeout_s)

    def post(self, path: str, body: Any = None, *, status: int = 200) -> Any:
        """The JSON answer to a POST, which must have this status."""
        answer = self.call("POST", path, {} if body is None else body)
        assert answer.status_code == status, answer.text
        return answer.json()

    def get(self, path: str, *, status: int = 200) -> Any:
        """The JSON answer to a GET, which must have this status."""
        answer = self.call("GET", path)
        assert answer.status_code == status, answer.text
        return answer.json()

    def session(self) -> str:
        """A new session."""
        request = {"tags": [], "user_metadata": {}, "sdk_version": "0.36.0"}
        return str(self.post("create_session", request)["session_id"])

    def model(self, session_id: str | None = None, number: int = 0) -> str:
        """A new model, made."""
        request = {"session_id": session_id or self.session(), "model_seq_id": number}
        promise = self.post(
            "create_model", {**request, "base_model": MODEL, "lora_config": {"rank": 8}}
        )
        return str(self.result(promise["request_id"])["model_id"])

    def train(
        self, model_id: str, seq_id: int, *, tokens: int = 4, loss_fn: str = "cross_entropy"
    ) -> httpx.Response:
        """The raw answer to a forward_backward."""
        return self.client.post(
            "/api/v1/forward_backward",
            content=training_body(model_id, seq_id, tokens=tokens, loss_fn=loss_fn),
            headers={"X-API-Key": self.api_key, "Content-Type": "application/x-protobuf"},
        )

    def step(self, model_id: str, seq_id: int, **params: float) -> Any:
        """The promise of an optimizer step."""
        return self.post(
            "optim_step", {"model_id": model_id, "seq_id": seq_id, "adam_params": params}
        )

    def poll(self, request_id: str, accept: str = "application/json") -> httpx.Response:
        """One poll."""
        return self.call("POST", "retrieve_future", {"request_id": request_id}, Accept=accept)

    def result(self, request_id: str) -> Any:
        """The JSON result, polled for until it is there."""
        while (answer := self.poll(request_id)).status_code == 408:
            pass
        assert answer.status_code == 200, answer.text
        return answer.json()

    def result_or_error(self, request_id: str) -> Any:
        """The JSON result or the error it ended with, polled for until it is there."""
        while (answer := self.poll(request_id)).status_code == 408:
            pass
        return answer.json()


def training_body(
    model_id: str,
    seq_id: int,
    *,
    tokens: int = 4,
    loss_fn: str = "cross_entropy",
    first: int = 1,
    copies: int = 1,
    forward_only: bool = False,
) -> bytes:
    """The protobuf body of a forward_backward over one short sequence, or copies of it."""
    ids = [first + i % 200 for i in range(tokens + 1)]
    datum = Datum(
        ModelInput.from_ints(ids[:-1]), {"target_tokens": ids[1:], "weights": [1.0] * tokens}
    )
    parts = protobuf.encode_forward_backward_request(
        model_id=model_id,
        seq_id=seq_id,
        data=[datum] * copies,
        loss_fn=loss_fn,
        loss_fn_config=None,
        forward_only=forward_only,
    )
    return b"".join(parts)
