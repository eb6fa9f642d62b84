"""What a greedy tenant costs a polite one, in figures: `python -m tests.security.fairness_run`.

A server whose engine takes 50 ms for each batch. The polite tenant sends one request after the
other and waits for each result, first alone, then beside a greedy one that keeps 500 in flight, in
a process of its own. One JSON line for each kind of work: p50 and p99 in milliseconds, alone and
beside, the bound (twice the p99 alone and one batch), and what the greedy one got. Nothing is
asserted about times; `tests/server/test_turns.py` and `tests/scheduler/test_plan.py` assert order
and shares.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import uvloop
from tests.server.driving import null_config
from tests.support.load import work
from tests.support.load.wire import Wire, connect

from tinkex.scheduler import SchedulerConfig
from tinkex.server.admin import create_key
from tinkex.server.embedded import EmbeddedServer

BATCH_S = 0.05
IN_FLIGHT = 500
GREEDY_PLACES = 8
WARM_UP_S = 4.0
KINDS = ("sample", "train")

_JSON, _PROTOBUF = "application/json", "application/x-protobuf"


class Tenant:
    """One tenant's calls, each until it is taken; refusals are counted and waited out."""

    def __init__(self, url: str, key: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._address = parts.hostname, parts.port
        self._key = key
        self.num_refused = 0
        self.slowest_refusal_s = 0.0

    async def connect(self) -> Wire:
        return await connect(*self._address)

    async def call(self, wire: Wire, path: str, body: bytes, content: str = _JSON) -> bytes:
        """The body of the answer."""
        request = (
            f"POST /api/v1/{path} HTTP/1.1\r\nHost: {self._address[0]}\r\nX-API-Key: {self._key}"
            f"\r\nAccept: {_PROTOBUF}\r\nContent-Type: {content}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode() + body
        while True:
            began = time.monotonic()
            status, head, answer = await _exchange(wire, request)
            if status == 200:
                return answer
            if status in {429, 503}:
                self.num_refused += 1
                took_s = time.monotonic() - began
                self.slowest_refusal_s = max(self.slowest_refusal_s, took_s)
                await asyncio.sleep(_retry_after_s(head))
            else:
                assert status == 408, f"{path}: {status} {answer[:300]!r}"

    async def place(self, wire: Wire, kind: str) -> str:
        """A run to train, or a sampler."""
        asked: dict[str, object] = {"tags": [], "user_metadata": {}, "sdk_version": "0"}
        session_id = (await self._told(wire, "create_session", asked))["session_id"]
        asked = {"session_id": session_id, "base_model": work.BASE_MODEL}
        if kind == "sample":
            made = {**asked, "sampling_session_seq_id": 0}
            return (await self._told(wire, "create_sampling_session", made))["sampling_session_id"]
        promise = await self._told(wire, "create_model", {**asked, "model_seq_id": 0})
        await self._result(wire, promise)
        return f"{session_id}:train:0"

    async def work(self, wire: Wire, kind: str, place: str, number: int) -> None:
        """One request and its result."""
        variant = number % work.VARIANTS
        if kind == "sample":
            body = work.sample_body(place, number, variant)
            promise = await self.call(wire, "asample", body)
        else:
            body = work.training_head(place.encode(), number) + work.training_tail(variant)
            promise = await self.call(wire, "forward_backward", body, _PROTOBUF)
        await self._result(wire, json.loads(promise))

    async def _result(self, wire: Wire, promise: dict[str, str]) -> None:
        asked = json.dumps({"request_id": promise["request_id"]}).encode()
        await self.call(wire, "retrieve_future", asked)

    async def _told(self, wire: Wire, path: str, asked: dict[str, object]) -> dict[str, str]:
        told: dict[str, str] = json.loads(await self.call(wire, path, json.dumps(asked).encode()))
        return told


async def polite(url: str, key: str, kind: str, seconds: float) -> list[float]:
    """How long each of its requests took, one after the other."""
    tenant = Tenant(url, key)
    wire = await tenant.connect()
    place = await tenant.place(wire, kind)
    took_s: list[float] = []
    until = time.monotonic() + seconds
    for number in itertools.count(1):
        began = time.monotonic()
        if began > until:
            break
        await tenant.work(wire, kind, place, number)
        took_s.append(time.monotonic() - began)
    wire.close()
    return took_s


async def greedy(url: str, key: str, kind: str) -> None:
    """Keeps so many requests in flight until it is told to end; prints what it got."""
    tenant = Tenant(url, key)
    wires = [await tenant.connect() for _ in range(IN_FLIGHT)]
    places = [await tenant.place(wires[0], kind) for _ in range(GREEDY_PLACES)]
    counters = [itertools.count(1) for _ in places]
    num_done = 0

    async def keep_asking(wire: Wire, place: str, counter: Iterator[int]) -> None:
        nonlocal num_done
        while True:
            await tenant.work(wire, kind, place, next(counter))
            num_done += 1

    began = time.monotonic()
    crowd = asyncio.gather(
        *(
            keep_asking(wire, places[n % GREEDY_PLACES], counters[n % GREEDY_PLACES])
            for n, wire in enumerate(wires)
        )
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, crowd.cancel)
    try:
        await crowd
    except asyncio.CancelledError:
        got = {
            "per_s": round(num_done / (time.monotonic() - began), 1),
            "refused": tenant.num_refused,
            "slowest_refusal_ms": round(1000 * tenant.slowest_refusal_s, 1),
        }
        print(json.dumps(got), flush=True)


def measure(url: str, keys: list[str], kind: str, seconds: float) -> dict[str, object]:
    """Latencies of the polite tenant alone and beside the greedy one."""
    alone = _figures(uvloop.run(polite(url, keys[0], kind, seconds)))
    arguments = [sys.executable, "-m", __spec__.name, "greedy", url, keys[1], kind]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as crowd:
        try:
            time.sleep(WARM_UP_S)
            beside = _figures(uvloop.run(polite(url, keys[0], kind, seconds)))
            assert crowd.poll() is None, "the greedy tenant has given up"
        finally:
            crowd.terminate()
        output, _ = crowd.communicate(timeout=20)
    bound_ms = round(2 * alone["p99_ms"] + 1000 * BATCH_S, 1)
    return {
        "kind": kind,
        "in_flight": IN_FLIGHT,
        "alone": alone,
        "beside": beside,
        "bound_ms": bound_ms,
        "ok": beside["p99_ms"] <= bound_ms,
        "greedy": json.loads(output),
    }


def main(kinds: list[str], seconds: float) -> None:
    """Prints the figures of each kind of work."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = null_config(
            folder, device=f"null:{BATCH_S}", poll_hold_s=30.0, scheduler=SchedulerConfig()
        )
        keys = [create_key(folder, None, name=f"t{n}")[0] for n in range(2)]
        with EmbeddedServer(config) as server:
            for kind in kinds:
                print(json.dumps(measure(server.base_url, keys, kind, seconds)), flush=True)


async def _exchange(wire: Wire, request: bytes) -> tuple[int, bytes, bytes]:
    answered: asyncio.Future[tuple[int, bytes, bytes]]
    answered = asyncio.get_running_loop().create_future()

    def answer(status: int, head: bytes, body: bytes) -> None:
        if not answered.done():  # the process may be ending
            answered.set_result((status, head, body))

    wire.send(request, answer)
    return await answered


def _retry_after_s(head: bytes) -> float:
    _, _, after = head.partition(b"\r\nretry-after: ")
    assert after, f"a refusal says when to come again: {head!r}"
    return float(after.partition(b"\r\n")[0])


def _figures(took_s: list[float]) -> dict[str, float]:
    ordered = sorted(took_s)
    return {
        "n": len(ordered),
        "p50_ms": round(1000 * ordered[len(ordered) // 2], 1),
        "p99_ms": round(1000 * ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))], 1),
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["greedy"]:
        uvloop.run(greedy(*sys.argv[2:]))
    else:
        seconds = float(sys.argv[1]) if sys.argv[1:] else 6.0
        main(sys.argv[2:] or list(KINDS), seconds)
