"""Reading streamed samples over plain HTTP, and what the engine of a server holds."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from tests.server.driving import Http

Event = tuple[str, dict[str, Any]]

_numbers = itertools.count()


def base_sampler(http: Http, model: str) -> str:
    """A sampling session on a base model."""
    request = {"session_id": http.session(), "sampling_session_seq_id": 0, "base_model": model}
    return str(http.post("create_sampling_session", request)["sampling_session_id"])


def submit(http: Http, sampler: str, **fields: Any) -> str:
    """The request id of a sample; fields that are no request's go into its parameters."""
    own = {"num_samples", "stream", "topk_sample_logprobs", "prompt_logprobs"}
    body = {name: fields.pop(name) for name in list(fields) if name in own}
    tokens = fields.pop("tokens", [1, 2, 3])
    request = {
        "sampling_session_id": sampler,
        "seq_id": next(_numbers),
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": tokens}]},
        "sampling_params": {"max_tokens": 8, **fields},
        "stream": True,
        **body,
    }
    return str(http.post("asample", request)["request_id"])


@contextmanager
def following(http: Http, request_id: str, **fields: Any) -> Iterator[Iterator[Event]]:
    """The events of a stream but those of the queue; the block closes the connection."""
    with http.client.stream(
        "POST",
        "/api/v1/stream_sample",
        json={"request_id": request_id, **fields},
        headers={"X-API-Key": http.api_key},
    ) as answer:
        if answer.status_code != 200:
            answer.read()
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield _events(answer)


def follow(http: Http, request_id: str, **fields: Any) -> list[Event]:
    """All events of a stream."""
    with following(http, request_id, **fields) as events:
        return list(events)


class Sequences:
    """What a client has of each sequence; refuses a gap and a token that comes twice."""

    def __init__(self, count: int = 1) -> None:
        self.tokens: list[list[int]] = [[] for _ in range(count)]
        self.logprobs: list[list[float]] = [[] for _ in range(count)]
        self.topk: list[list[Any]] = [[] for _ in range(count)]
        self.stop_reasons: list[str | None] = [None] * count

    @property
    def offsets(self) -> list[int]:
        return [len(each) for each in self.tokens]

    def add(self, event: Event) -> None:
        name, delta = event
        assert name == "tokens"
        index = delta["index"]
        assert self.stop_reasons[index] is None
        assert delta["offset"] == len(self.tokens[index])
        assert len(delta["tokens"]) == len(delta["logprobs"]) > 0
        self.tokens[index] += delta["tokens"]
        self.logprobs[index] += delta["logprobs"]
        self.topk[index] += delta.get("topk_logprobs") or []
        self.stop_reasons[index] = delta.get("stop_reason")

    def add_all(self, events: list[Event]) -> dict[str, Any]:
        """Adds the tokens; the last event, which says that the sample is over."""
        *deltas, (name, end) = events
        for each in deltas:
            self.add(each)
        assert name == "end"
        return end


def expect_result(http: Http, request_id: str, streamed: Sequences) -> None:
    """The stream and the result are the same."""
    result = http.result(request_id)["sequences"]
    assert [each["tokens"] for each in result] == streamed.tokens
    assert [each["logprobs"] for each in result] == streamed.logprobs
    assert [each["stop_reason"] for each in result] == streamed.stop_reasons


def _events(answer: httpx.Response) -> Iterator[Event]:
    name = ""
    for line in answer.iter_lines():
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data" and name != "queue":
            yield name, json.loads(value)
