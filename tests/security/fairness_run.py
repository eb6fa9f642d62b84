"""What a greedy tenant costs a polite one, in figures: `python -m tests.security.fairness_run`.

A server with the real engine and a tiny model, and batches as they really come. The polite tenant
sends one request after the other and waits for each result, first alone, then beside a greedy one,
in a process of its own, that keeps hundreds in flight. One JSON line for each case: p50 and p99 in
milliseconds, alone and beside, the batches of training and slices of sampling that ran beside it as
the server's driver timed them, the bound (twice the p99 alone and the p99 of those), and what the
greedy one got. The last case is a training loop that had the engine to itself for a while when
another tenant begins to sample: its longest wait for a step before and after.

Nothing is asserted about times; `tests/scheduler/queues/test_fair_time.py`, `test_planner.py` and
`tests/server/gate/test_fair_semaphore.py` assert order and shares.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

import uvloop

from tests.support.load import work
from tests.support.load.wire import Wire, connect
from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.server.admin import create_key
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer

MODEL = "tiny"
WARM_UP_S = 4.0
ALONE_S = 30.0
"""How long the training loop has the engine to itself before another tenant samples."""

Kind = Literal["train", "sample"]


class Case(NamedTuple):
    """What the polite tenant does, and what the greedy one does: requests in flight, and over how
    many runs or samplers."""

    polite: Kind
    greedy: Kind
    in_flight: int
    places: int


CASES = {
    "sample": Case("sample", "sample", 500, 8),
    "train": Case("train", "train", 500, 8),
    "pipelined": Case("train", "train", 300, 1),
    "train-beside-sampling": Case("train", "sample", 500, 8),
    "sample-beside-training": Case("sample", "train", 300, 1),
}

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
        request: dict[str, object] = {"tags": [], "user_metadata": {}, "sdk_version": "0"}
        session_id = (await self._answer(wire, "create_session", request))["session_id"]
        request = {"session_id": session_id, "base_model": MODEL}
        if kind == "sample":
            made = {**request, "sampling_session_seq_id": 0}
            return (await self._answer(wire, "create_sampling_session", made))[
                "sampling_session_id"
            ]
        promise = await self._answer(wire, "create_model", {**request, "model_seq_id": 0})
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

    async def sample_at_length(self, wire: Wire, place: str, number: int) -> None:
        """One request for as many tokens as the model's context holds, and its result."""
        request = {
            "sampling_session_id": place,
            "seq_id": number,
            "num_samples": 1,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]},
            "sampling_params": {"max_tokens": 30_000, "stop": []},
        }
        promise = await self.call(wire, "asample", json.dumps(request).encode())
        await self._result(wire, json.loads(promise))

    async def _result(self, wire: Wire, promise: dict[str, str]) -> None:
        request = json.dumps({"request_id": promise["request_id"]}).encode()
        await self.call(wire, "retrieve_future", request)

    async def _answer(self, wire: Wire, path: str, request: dict[str, object]) -> dict[str, str]:
        answer: dict[str, str] = json.loads(
            await self.call(wire, path, json.dumps(request).encode())
        )
        return answer


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


async def greedy(url: str, key: str, kind: str, in_flight: int, num_places: int) -> None:
    """Keeps so many requests in flight until it is stopped; prints a line when it has its first
    result, and what it got at the end."""
    tenant = Tenant(url, key)
    wires = [await tenant.connect() for _ in range(in_flight)]
    places = [await tenant.place(wires[0], kind) for _ in range(num_places)]
    counters = [itertools.count(1) for _ in places]
    num_done = 0

    async def keep_asking(wire: Wire, place: str, counter: Iterator[int]) -> None:
        nonlocal num_done
        while True:
            await tenant.work(wire, kind, place, next(counter))
            if not num_done:
                print("begun", flush=True)
            num_done += 1

    began = time.monotonic()
    crowd = asyncio.gather(
        *(
            keep_asking(wire, places[n % num_places], counters[n % num_places])
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


class BatchLog:
    """What the driver of a server that is started with `variables` says about its batches."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_to = 0
        self.variables = {
            "TINKEX_TEST_BATCHES": str(path),
            "PYTHONPATH": str(Path(__file__).with_name("watched_python")),
        }

    def new_figures(self, kind: Kind) -> dict[str, float]:
        """How long batches, or slices of sampling, took since the last call."""
        text = self._path.read_text()[self._read_to :] if self._path.exists() else ""
        self._read_to += len(text)
        begins = "A batch of" if kind == "train" else "A slice of"
        took = re.findall(rf"^{begins}.*? took ([\d.]+) s", text, re.MULTILINE)
        return _figures([float(each) for each in took])


def measure(
    url: str, keys: list[str], name: str, seconds: float, batches: BatchLog
) -> dict[str, object]:
    """Latencies of the polite tenant alone and beside the greedy one."""
    case = CASES[name]
    alone = _figures(uvloop.run(polite(url, keys[0], case.polite, seconds)))
    load = [case.greedy, str(case.in_flight), str(case.places)]
    arguments = [sys.executable, "-m", __spec__.name, "greedy", url, keys[1], *load]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as crowd:
        try:
            assert crowd.stdout is not None
            assert crowd.stdout.readline() == "begun\n"
            time.sleep(WARM_UP_S)
            batches.new_figures(case.greedy)
            beside = _figures(uvloop.run(polite(url, keys[0], case.polite, seconds)))
            neighbour = batches.new_figures(case.greedy)
            assert crowd.poll() is None, "the greedy tenant has given up"
        finally:
            crowd.terminate()
        output, _ = crowd.communicate(timeout=20)
    bound_ms = round(2 * alone["p99_ms"] + neighbour["p99_ms"], 1)
    return {
        "case": name,
        "alone": alone,
        "beside": beside,
        "batches": neighbour,
        "bound_ms": bound_ms,
        "ok": beside["p99_ms"] <= bound_ms,
        "greedy": json.loads(output),
    }


async def joining(url: str, keys: list[str]) -> dict[str, object]:
    """The longest wait for a result of a loop with two steps in flight: while it has the engine to
    itself, and after another tenant has begun to sample at length."""
    trainer, sampler = Tenant(url, keys[0]), Tenant(url, keys[1])
    wires = [await trainer.connect() for _ in range(2)]
    place = await trainer.place(wires[0], "train")
    numbers = itertools.count(1)
    waits: list[tuple[float, float]] = []  # when each ended, and how long it took

    async def keep_training(wire: Wire) -> None:
        while True:
            began = time.monotonic()
            await trainer.work(wire, "train", place, next(numbers))
            waits.append((time.monotonic(), time.monotonic() - began))

    loop = asyncio.gather(*(keep_training(wire) for wire in wires))
    await asyncio.sleep(ALONE_S)
    joined = time.monotonic()
    others = [await sampler.connect() for _ in range(4)]
    place_of_sampler = await sampler.place(others[0], "sample")
    long = asyncio.gather(
        *(sampler.sample_at_length(each, place_of_sampler, n) for n, each in enumerate(others))
    )
    await asyncio.sleep(ALONE_S)
    loop.cancel()
    long.cancel()
    for each in (loop, long):
        with contextlib.suppress(asyncio.CancelledError):
            await each
    return {
        "case": "joining",
        "longest_alone_ms": _longest_ms([took for ended, took in waits if ended < joined]),
        "longest_beside_ms": _longest_ms([took for ended, took in waits if ended >= joined]),
        "steps_beside": sum(ended >= joined for ended, _ in waits),
    }


def main(cases: list[str], seconds: float) -> None:
    """Prints the figures of each case."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_tiny_model(folder / "models" / MODEL, "smollm", max_position_embeddings=32_768)
        served = ServedModel(name=MODEL, source=str(model))
        config = ServerConfig(data_dir=folder / "data", port=0, models=(served,))
        config.data_dir.mkdir()
        made = (create_key(config.data_dir, None, name=f"t{n}", is_new_owner=True) for n in (0, 1))
        keys = [each.key for each in made]
        batches = BatchLog(folder / "batches.log")
        os.environ |= batches.variables
        with EmbeddedServer(config) as server:
            for case in cases:
                if case == "joining":
                    figures = uvloop.run(joining(server.base_url, keys))
                else:
                    figures = measure(server.base_url, keys, case, seconds, batches)
                print(json.dumps(figures), flush=True)


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
    if not ordered:
        return {"n": 0, "p50_ms": 0.0, "p99_ms": 0.0}
    return {
        "n": len(ordered),
        "p50_ms": round(1000 * ordered[len(ordered) // 2], 1),
        "p99_ms": round(1000 * ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))], 1),
    }


def _longest_ms(took_s: list[float]) -> float:
    return round(1000 * max(took_s, default=0.0), 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["greedy"]:
        url, key, kind, *numbers = sys.argv[2:]
        uvloop.run(greedy(url, key, kind, *map(int, numbers)))
    else:
        seconds = float(sys.argv[1]) if sys.argv[1:] else 6.0
        main(sys.argv[2:] or [*CASES, "joining"], seconds)
