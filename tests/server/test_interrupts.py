"""Samples whose client gave them up: Ctrl-C, an end without a wait, a client that is gone. The
engine must stop working on them, and on nothing else."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.driving import Http
from tests.support.waiting import wait_until
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer

_LIMIT_S = 60.0
_LONG = 100_000  # tokens: minutes of work for the tiny model
_SILENCE_S = 6.0


class Watched:
    """A real server on a tiny model, seen from inside: its log of samples and its engine."""

    def __init__(self, server: EmbeddedServer, data_dir: Path) -> None:
        self.server = server
        self._database = data_dir / "tinkex.db"
        self._known: set[str] = set()

    def forget_earlier(self) -> None:
        """Leaves samples that are there already out of account."""
        self._known = {row[0] for row in self._rows("SELECT request_id FROM samples")}

    def states(self) -> list[str]:
        """The states of the samples."""
        rows = self._rows("SELECT request_id, state FROM samples")
        return [state for request_id, state in rows if request_id not in self._known]

    def reasons(self) -> set[str]:
        """The messages of samples that failed."""
        rows = self._rows("SELECT request_id, body FROM results WHERE encoding = 'error'")
        return {json.loads(body)["error"] for each, body in rows if each not in self._known}

    def _rows(self, query: str) -> list[Any]:
        db = sqlite3.connect(f"file:{self._database}?mode=ro", uri=True)
        try:
            return db.execute(query).fetchall()
        finally:
            db.close()

    def engine_cpu_s(self) -> float:
        """Seconds of CPU that the engine's processes have used."""
        total = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == self.server.pid:
                total += int(fields[11]) + int(fields[12])
        return total / os.sysconf("SC_CLK_TCK")

    def is_engine_idle(self) -> bool:
        before = self.engine_cpu_s()
        time.sleep(1.0)
        return self.engine_cpu_s() - before < 0.05

    def wait_until_sampling(self, count: int = 1) -> None:
        """Returns once so many samples are kept and the engine works."""
        wait_until(lambda: self.states() == ["queued"] * count)
        before = self.engine_cpu_s()
        wait_until(lambda: self.engine_cpu_s() > before + 0.2)

    def expect_cancelled(self, count: int = 1) -> None:
        wait_until(lambda: self.states() == ["failed"] * count)
        wait_until(self.is_engine_idle)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that takes very long answers."""
    from tinkex.engine.convert.tiny_model import make_tiny_model

    folder = make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "smollm")
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = 2 * _LONG
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Watched]:
    data_dir = tmp_path_factory.mktemp("data")
    config = ServerConfig(
        data_dir=data_dir,
        port=0,
        models=(ServedModel(name="tiny", source=str(model)),),
        num_threads=1,
        poll_hold_s=1.0,
        sample_silence_s=_SILENCE_S,
        trim_every_s=0.5,
        patience_s=0.5,
    )
    with EmbeddedServer(config) as server:
        yield Watched(server, data_dir)


@pytest.fixture
def watched(shared: Watched) -> Watched:
    shared.forget_earlier()
    return shared


_BEGIN = f"""
import asyncio, sys, {{module}} as sdk
from {{module}} import types

service = sdk.ServiceClient(base_url=sys.argv[1], api_key=sys.argv[2])
sampler = service.create_sampling_client(base_model="tiny")
prompt = types.ModelInput.from_ints([1, 2, 3])
params = types.SamplingParams(max_tokens={_LONG}, temperature=0.0)

def sample():
    return sampler.sample(prompt, 1, params)

def stream():
    return sampler.sample(prompt, 1, params, stream=True)

"""


def start_client(
    server: EmbeddedServer, code: str, module: str = "tinkex"
) -> subprocess.Popen[str]:
    """A client program in a session of its own, where Ctrl-C means what it means at a terminal."""
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            _BEGIN.format(module=module) + code,
            server.base_url,
            server.api_key,
        ],
        env={**os.environ, "TINKER_TELEMETRY": "0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def end(client: subprocess.Popen[str], number: int) -> str:
    """Sends a signal, waits for the end; what the client wrote to stderr."""
    client.send_signal(number)
    _, errors = client.communicate(timeout=_LIMIT_S)
    return errors


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("sample().result()", 1),
        ("sample().result(timeout=1000)", 1),
        ("sample().exception()", 1),
        ("sdk.await_many([sample() for _ in range(3)])", 3),
        ("list(sdk.as_completed([sample() for _ in range(3)]))", 3),
        ("[each.result() for each in [sample() for _ in range(3)]]", 3),
        ("list(sdk.stream(lambda _: sample(), range(9), max_in_flight=3))", 3),
        ("with service: sample().result()", 1),
        ("async def main(): await sample()\nasyncio.run(main())", 1),
        ("for _ in stream(): pass", 1),
        ("async def main():\n  async for _ in stream(): pass\nasyncio.run(main())", 1),
    ],
)
def test_ctrl_c_in_a_wait_stops_the_engine(watched: Watched, code: str, count: int) -> None:
    client = start_client(watched.server, code)
    watched.wait_until_sampling(count)
    assert "KeyboardInterrupt" in end(client, signal.SIGINT)
    assert client.returncode == -signal.SIGINT
    watched.expect_cancelled(count)
    assert watched.reasons() == {"The request was cancelled by its client."}


_LEAVES = """
for _ in stream(): break

kept = stream()
for _ in kept: break

with stream() as given: next(given)

given = stream(); next(given); given.cancel()

async def main():
    async for _ in stream(): break
    await asyncio.sleep(1)

asyncio.run(main())
print("left", flush=True)
sys.stdin.read()
"""


def test_streams_that_are_left_stop_the_engine(watched: Watched) -> None:
    client = start_client(watched.server, _LEAVES)
    assert client.stdout is not None
    assert client.stdout.readline() == "left\n"
    watched.expect_cancelled(5)
    assert client.poll() is None, "the program goes on"
    end(client, signal.SIGKILL)


def test_a_program_that_ends_gives_up_its_samples(watched: Watched) -> None:
    client = start_client(watched.server, "pending = sample(); import time; time.sleep(1)")
    assert end(client, 0) == ""
    assert client.returncode == 0
    watched.expect_cancelled()


def test_a_client_that_was_killed_leaves_nothing_running(watched: Watched) -> None:
    client = start_client(watched.server, "sample().result()")
    watched.wait_until_sampling()
    end(client, signal.SIGKILL)
    watched.expect_cancelled()
    (reason,) = watched.reasons()
    assert "gone" in reason


def test_ctrl_c_in_the_official_client_leaves_nothing_running(watched: Watched) -> None:
    client = start_client(watched.server, "sample().result()", "tinker")
    watched.wait_until_sampling()
    end(client, signal.SIGINT)
    watched.expect_cancelled()


def begin_sample(http: Http, session: str, max_tokens: int) -> str:
    request = {"session_id": session, "sampling_session_seq_id": 0, "base_model": "tiny"}
    sampler = http.post("create_sampling_session", request)["sampling_session_id"]
    promise = http.post(
        "asample",
        {
            "sampling_session_id": sampler,
            "seq_id": 0,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]},
            "sampling_params": {"max_tokens": max_tokens, "temperature": 0.0},
        },
    )
    return str(promise["request_id"])


@pytest.fixture
def http(watched: Watched) -> Iterator[Http]:
    with httpx.Client(base_url=watched.server.base_url, timeout=60) as client:
        yield Http(client, watched.server.api_key)


def pass_time(then: Callable[[], object]) -> None:
    """Lets more time go by than a client may be silent, with a sign of life now and then."""
    until = time.monotonic() + 2 * _SILENCE_S
    while time.monotonic() < until:
        then()
        time.sleep(_SILENCE_S / 10)


def test_a_sample_of_a_live_session_runs_though_it_is_not_polled(
    watched: Watched, http: Http
) -> None:
    session = http.session()
    begin_sample(http, session, _LONG)
    pass_time(lambda: http.post("session_heartbeat", {"session_id": session}))
    assert watched.states() == ["queued"]
    watched.expect_cancelled()


def test_a_sample_that_is_polled_runs_though_its_session_is_silent(
    watched: Watched, http: Http
) -> None:
    request_id = begin_sample(http, http.session(), _LONG)
    pass_time(lambda: http.poll(request_id))
    assert watched.states() == ["queued"]
    watched.expect_cancelled()


def test_samples_end_with_their_session_unless_they_are_still_waited_for(
    watched: Watched, http: Http
) -> None:
    session = http.session()
    request_id = begin_sample(http, session, _LONG)
    http.post(f"sessions/{session}/finish", {"reason": {"type": "interrupted"}, "detail": None})
    pass_time(lambda: http.poll(request_id))
    assert watched.states() == ["queued"]
    watched.expect_cancelled()
    (reason,) = watched.reasons()
    assert "ended" in reason


def test_training_of_a_session_that_is_gone_is_done(watched: Watched, http: Http) -> None:
    """It is in the run's log: what comes after it counts on it."""
    model_id = _model(http)
    ahead = begin_sample(http, http.session(), _LONG)
    promises = [http.step(model_id, seq_id)["request_id"] for seq_id in (1, 2, 3)]
    watched.expect_cancelled()
    assert all("error" not in http.result(each) for each in promises)
    assert http.result(ahead)["category"] == "user"


def _model(http: Http) -> str:
    request = {"session_id": http.session(), "model_seq_id": 0, "base_model": "tiny"}
    promise = http.post("create_model", {**request, "lora_config": {"rank": 8}})
    return str(http.result(promise["request_id"])["model_id"])
