"""The stream of what happens to runs: who gets what, how it goes on, and when it ends."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.server.driving import Http, null_config
from tests.support.keys import new_tenant_key
from tinkex.server.embedded import EmbeddedServer
from tinkex.server.errors import Busy
from tinkex.server.live_feed import MAX_STREAMS_PER_OWNER, LiveFeed
from tinkex.store.operations import Operation


class Event(NamedTuple):
    name: str
    position: str
    data: Any


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("live")


@pytest.fixture(scope="module")
def watched(folder: Path) -> Iterator[EmbeddedServer]:
    """A server whose streams last."""
    with EmbeddedServer(null_config(folder, live_stream_s=600.0)) as running:
        yield running


@pytest.fixture
def alice(watched: EmbeddedServer) -> Iterator[Http]:
    with httpx.Client(base_url=watched.base_url, timeout=60) as client:
        yield Http(client, watched.api_key)


@pytest.fixture
def new_key(folder: Path) -> Callable[[], str]:
    def make() -> str:
        return new_tenant_key(folder)

    return make


@contextmanager
def streaming(http: Http, query: str, **headers: str) -> Iterator[Iterator[Event]]:
    """The events of a stream, as they come."""
    sent = {"X-API-Key": http.api_key, **headers}
    with http.client.stream("GET", f"/api/v1/live?{query}", headers=sent) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield events(answer.iter_lines())


def events(lines: Iterator[str]) -> Iterator[Event]:
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "event" in fields:
            yield Event(fields["event"], fields["id"], json.loads(fields["data"]))
            fields = {}


def first(found: Iterator[Event], name: str) -> Event:
    return next(each for each in found if each.name == name)


def step(http: Http, model: str, seq_id: int) -> None:
    promise = http.train(model, seq_id).json()
    http.result(promise["request_id"])
    http.result(http.step(model, seq_id + 1)["request_id"])


def test_a_watched_run_sends_its_points_as_it_trains(alice: Http) -> None:
    model = alice.model()
    step(alice, model, 1)
    with streaming(alice, f"runs={model}&after={model}=0") as found:
        point = first(found, "point")
        assert point.data["run"] == model
        assert point.data["columns"]["step"] == [1]
        assert point.position == f"{model}=1"
        record = first(found, "run").data
        assert record["training_run_id"] == model
        assert len(record["spark"]) == 1
        with httpx.Client(base_url=str(alice.client.base_url), timeout=60) as client:
            step(Http(client, alice.api_key), model, 3)
        seen = []
        for each in found:
            seen.append(each)
            if each.name == "point":
                break
    operations = [each.data for each in seen if each.name == "operation"]
    states = [(each["kind"], each["state"]) for each in operations if each["seq_id"] == 3]
    assert states == [("forward_backward", each) for each in ("queued", "running", "done")]
    assert seen[-1].data["columns"]["index"] == [2]
    with streaming(alice, f"runs={model}", **{"Last-Event-ID": f"{model}=1"}) as found:
        again = first(found, "point")
    assert again.data["columns"]["index"] == [2], "it goes on where the reader was"


def test_a_stream_goes_on_for_a_key_in_the_authorization_header(alice: Http) -> None:
    model = alice.model()
    bearer = {"Authorization": f"Bearer {alice.api_key}"}
    url = f"{alice.client.base_url}/api/v1/live?runs={model}"
    with (
        httpx.Client(timeout=60) as client,
        client.stream("GET", url, headers=bearer) as answer,
    ):
        found = events(answer.iter_lines())
        assert first(found, "run").data["training_run_id"] == model
        step(alice, model, 1)
        assert first(found, "point").data["columns"]["step"] == [1]


def test_a_name_and_an_end_are_sent_without_watching(alice: Http) -> None:
    model = alice.model()
    with (
        httpx.Client(base_url=str(alice.client.base_url), timeout=60) as client,
        streaming(alice, "") as found,
    ):
        other = Http(client, alice.api_key)
        assert other.call("PATCH", f"training_runs/{model}", {"name": "told"}).status_code == 200
        assert first(found, "run").data["name"] == "told"
        promise = other.train(model, 1, loss_fn="no_such_loss").json()
        assert "request_id" not in promise or other.poll(promise["request_id"]).status_code == 200
        settled = (each for each in found if each.data["status"]["state"] == "idle")
        assert next(settled).name == "run", "a run that has settled is told of once more"


def test_a_stream_has_nothing_of_another_tenant(
    alice: Http, watched: EmbeddedServer, new_key: Callable[[], str]
) -> None:
    with httpx.Client(base_url=watched.base_url, timeout=60) as client:
        bob = Http(client, new_key())
        mine, theirs = alice.model(), bob.model()
        with streaming(alice, f"runs={mine}") as found:
            assert first(found, "run").data["training_run_id"] == mine
            step(bob, theirs, 1)
            with httpx.Client(base_url=watched.base_url, timeout=60) as more:
                step(Http(more, alice.api_key), mine, 1)
            seen = [first(found, "point"), first(found, "run")]
        assert theirs not in str(seen)


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("runs=nobody:train:0", 404),
        ("runs=" + ",".join(f"r{n}" for n in range(65)), 422),
        ("after=what", 422),
    ],
)
def test_a_wrong_question_is_refused(alice: Http, query: str, status: int) -> None:
    assert alice.call("GET", f"live?{query}").status_code == status


def test_the_head_of_a_stream_is_no_stream(alice: Http) -> None:
    assert alice.call("HEAD", "live").status_code == 200


def test_a_stream_ends_when_its_key_is_revoked(
    watched: EmbeddedServer, new_key: Callable[[], str]
) -> None:
    with (
        httpx.Client(base_url=watched.base_url, timeout=60) as client,
        httpx.Client(base_url=watched.base_url, timeout=60) as other,
    ):
        bob = Http(client, new_key())
        with streaming(bob, "") as found:
            assert Http(other, bob.api_key).call("DELETE", "auth/apikey/me").status_code == 200
            assert list(found) == []


def test_streams_end_when_the_server_drains(tmp_path: Path) -> None:
    server = EmbeddedServer(null_config(tmp_path, live_stream_s=600.0, drain_s=30.0))
    server.start()
    try:
        with httpx.Client(base_url=server.base_url, timeout=60) as client:
            with streaming(Http(client, server.api_key), "") as found:
                began = time.monotonic()
                assert server.stop() == 0
                assert list(found) == []
            assert time.monotonic() - began < 30.0, "the stream did not hold the server up"
    finally:
        server.close()


def operation(number: int, owner: str = "a") -> Operation:
    return Operation(
        request_id=str(number),
        owner=owner,
        model_id=f"m{number}",
        seq_id=number,
        kind="forward",
        cost=1,
        state="queued",
        created_at=0.0,
    )


def test_a_slow_reader_loses_events_and_no_memory() -> None:
    async def flood() -> None:
        feed = LiveFeed()
        feed.note_operations([operation(1)], "done")  # there is no one to tell
        with feed.open("a", frozenset(["m1"])) as stream:
            for _ in range(500):
                feed.note_operations([operation(1), operation(2), operation(1, "b")], "done")
            await asyncio.sleep(0)
            await asyncio.wait_for(stream.has_news.wait(), 60)
            changed, operations, is_lost = stream.take()
            assert changed == {"m1", "m2"}
            assert len(operations) == 256
            assert is_lost
            assert stream.take() == (set(), [], False)
            for number in range(2000):
                feed.note_run("a", str(number))
            changed, _, is_lost = stream.take()
            assert (len(changed), is_lost) == (1000, True)
        feed.note_run("a", "m1")
        assert stream.take()[0] == set(), "it is closed"

    asyncio.run(flood())


def test_streams_of_one_owner_are_bounded() -> None:
    async def open_many() -> None:
        feed, opened = LiveFeed(), []
        for _ in range(MAX_STREAMS_PER_OWNER):
            opened.append(feed.open("a", frozenset()))
            opened[-1].__enter__()
        with pytest.raises(Busy, match="live streams"), feed.open("a", frozenset()):
            pass
        with feed.open("b", frozenset()) as other:
            feed.close()
            assert other.has_news.is_set()
            feed.note_operations([operation(1)], "done")
        for each in opened:
            each.__exit__(None, None, None)
        with feed.open("a", frozenset()):
            pass

    asyncio.run(open_many())
