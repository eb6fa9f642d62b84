"""What `tinkex serve` tells its operator: a start report, events, requests, and how it ends."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from tests.server.driving import Http
from tests.server.test_cli import TINKEX
from tests.support.raw_http import RawClient
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.http.access_log import AccessLog
from tinkex.server.upkeep.start_report import start_report

KEY = "tml-bootstrap-key-of-this-test-0123456789"
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (INFO|WARNING|ERROR|DEBUG) (.+)")
REQUEST = re.compile(r"(GET|POST|PUT|DELETE) \S+ (\d{3}|-) [\d.]+ ms \S+ in=\d+ out=\d+")
_HANG_S = 60.0


class Serving:
    """A running `tinkex serve` with the null engine, its log in a file."""

    def __init__(self, folder: Path, *options: str, device: str = "null") -> None:
        self._log = folder / "stderr"
        command = [*TINKEX, "serve", "--port", "0", "--data-dir", str(folder / "data")]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, "--device", device, *options],
                env={**os.environ, "TINKEX_BOOTSTRAP_KEY": KEY},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        assert first.startswith("Listening on "), self.log()
        self.url = first.split()[-1]

    def log(self) -> str:
        return self._log.read_text()

    def lines(self) -> list[str]:
        """The log's messages; the greeting, which has no times, is not among them."""
        assert "Traceback" not in self.log()
        return [match[2] for match in map(LINE.fullmatch, self.log().splitlines()) if match]

    def requests(self) -> list[str]:
        return [line for line in self.lines() if REQUEST.fullmatch(line)]

    def wait_for(self, words: str) -> None:
        deadline = time.monotonic() + _HANG_S
        while words not in self.log():
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.05)

    def stop(self, sig: int = signal.SIGINT) -> int:
        self.process.send_signal(sig)
        self.process.communicate(timeout=_HANG_S)
        return self.process.returncode


@contextmanager
def serving(folder: Path, *options: str, device: str = "null") -> Iterator[Serving]:
    server = Serving(folder, *options, device=device)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
        server.process.communicate()


def train_and_save(server: Serving) -> str:
    """One short run with a checkpoint; the run's id."""
    with httpx.Client(base_url=server.url, timeout=30) as client:
        http = Http(client, KEY)
        model = http.model()
        ask = {"model_id": model, "path": "kept", "seq_id": 1}
        http.poll(http.post("save_weights", ask)["request_id"])
        http.client.get("/healthz")
    return model


def test_start_report_and_important_events_by_default(tmp_path: Path) -> None:
    with serving(tmp_path, "--model", "null=", "--model", "two=x", "--model", "three=x") as server:
        model = train_and_save(server)
        assert server.stop() == 0
    lines = server.lines()
    output = "\n".join(lines)
    assert f"listens on {server.url}" in lines[0]
    assert f"Data folder: {tmp_path / 'data'}" in lines
    assert f"Database: sqlite:///{tmp_path / 'data' / 'tinkex.db'}" in lines
    assert "Models: null; two (also three)" in lines
    assert "Device: null, base weights in float32" in output
    assert "Ctrl-C stops" in output
    assert "-v adds one line per request" in output
    assert re.search(r"Engine ready after [\d.]+ s: null \(", output)
    assert f"Run created: {model} on " in output
    assert f"Checkpoint saved: tinker://{model}/weights/kept (" in output
    assert server.requests() == []


def test_quiet_server_logs_nothing_but_warnings(tmp_path: Path) -> None:
    with serving(tmp_path, "-q") as server:
        train_and_save(server)
        assert server.stop(signal.SIGTERM) == 0
    assert server.lines() == []


def test_verbose_server_logs_requests_and_counts_polls(tmp_path: Path) -> None:
    with serving(tmp_path, "-v") as server:
        train_and_save(server)
        with httpx.Client(base_url=server.url) as client:
            client.get("/api/v1/no_such_route?api_key=anything", headers={"X-API-Key": KEY})
            client.post("/api/v1/create_session", headers={"X-API-Key": "tml-wrong"})
        assert server.stop() == 0
    requests = server.requests()
    begun = [line.split(" ms ")[0].rpartition(" ")[0] for line in requests]
    assert "POST /api/v1/create_model 200" in begun
    assert "GET /api/v1/no_such_route 404" in begun, "the query is not shown"
    assert "POST /api/v1/create_session 401" in begun
    assert not any("retrieve_future" in line or "healthz" in line for line in requests)
    for line in requests:
        assert (" ms - in=" if " 401 " in line else " ms bootstrap/bootstrap in=") in line
    counted = next(line for line in server.lines() if line.startswith("Polls in the last "))
    assert re.search(r"\d+ /api/v1/retrieve_future", counted)
    assert "1 /healthz" in counted
    assert KEY not in server.log()


def test_very_verbose_server_logs_polls(tmp_path: Path) -> None:
    with serving(tmp_path, "-vv") as server:
        train_and_save(server)
        assert server.stop() == 0
    polls = [line for line in server.requests() if line.startswith("POST /api/v1/retrieve_future ")]
    assert polls
    assert "Polls in the last" not in server.log()


@pytest.mark.parametrize(("options", "is_logged"), [((), False), (("-vv",), True)])
def test_strangers_cannot_fill_the_log_with_what_is_no_request(
    tmp_path: Path, options: tuple[str, ...], is_logged: bool
) -> None:
    with serving(tmp_path, *options) as server:
        for _ in range(20):
            with RawClient(server.url) as raw:
                assert raw.ask(b"\x16\x03\x01\x02\x00\r\n\r\n").status == 400
        assert server.stop() == 0
    refused = [line for line in server.lines() if line.startswith("No request, from 127.0.0.1: ")]
    assert len(refused) == (20 if is_logged else 0)
    assert not any("Invalid HTTP request" in line for line in server.lines())


def test_ctrl_c_says_what_is_finished_and_where_the_state_is(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        assert server.stop(signal.SIGINT) == 0
    *_, draining, stopped = server.lines()
    assert re.match(r"Draining: \d+ open requests get up to 20 s, ", draining)
    assert "Ctrl-C again ends at once" in draining
    assert stopped.startswith(f"Stopped. The state is kept in {tmp_path / 'data'};")


def test_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, "--drain-s", "600", device="null:300") as server:
        engines = psutil.Process(server.process.pid).children()
        with httpx.Client(base_url=server.url, timeout=30) as client:
            http = Http(client, KEY)
            http.train(http.model(), 1)
        time.sleep(1.0)  # the engine has begun the call that takes five minutes
        server.process.send_signal(signal.SIGINT)
        server.wait_for("Draining: ")
        time.sleep(0.5)
        assert server.process.poll() is None, "it waits for the engine"
        assert server.stop(signal.SIGINT) == 128 + signal.SIGINT
        assert "Ended at once." in server.log()
        assert "Traceback" not in server.log()
        _, alive = psutil.wait_procs(engines, timeout=_HANG_S)
        assert alive == [], "no engine is left behind"


def test_sigterm_twice_still_drains(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        server.process.send_signal(signal.SIGTERM)
        assert server.stop(signal.SIGTERM) == 0
    assert server.lines()[-1].startswith("Stopped. The state is kept in ")


@pytest.mark.parametrize(
    "database_url",
    [
        "postgresql://me:the-password@db.example.org/name",
        "postgresql://db.example.org/name?user=me&password=the-password",
        "postgresql://db.example.org/name?passfile=x&sslpassword=the-password",
        "db.example.org/name?password=the-password",
    ],
)
def test_start_report_holds_no_password(tmp_path: Path, database_url: str) -> None:
    config = ServerConfig(
        data_dir=tmp_path,
        database_url=database_url,
        models=(ServedModel(name="a", source="x"),),
        bootstrap_key=KEY,
    )
    output = "\n".join(start_report(config, "http://127.0.0.1:1"))
    assert "db.example.org/name" in output
    assert "the-password" not in output
    assert KEY not in output


def test_line_of_a_hostile_request_is_one_plain_line(caplog: pytest.LogCaptureFixture) -> None:
    class Key:
        name = "a\nkey \x1b[31m"
        owner = "o" * 500

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["key"] = Key()
        scope["raw_path"] = b"/\x1b[31m\r\n/\xff/" + KEY.encode()
        await receive()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b"x"})

    with caplog.at_level(logging.INFO, "tinkex.access"):
        TestClient(AccessLog(app, with_polls=False)).post("/x", content=b"abc")
    (record,) = caplog.records
    line = record.getMessage()
    assert line.isprintable()
    assert REQUEST.fullmatch(line), line
    assert line.endswith("in=3 out=1")
    assert KEY not in line
    assert len(line) < 600


def test_request_without_an_answer_has_a_line(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("the client left")

    log = AccessLog(app, with_polls=False)
    with caplog.at_level(logging.INFO, "tinkex.access"), pytest.raises(RuntimeError):
        TestClient(log).get("/healthz")
    assert re.fullmatch(r"GET /healthz - [\d.]+ ms - in=0 out=0", caplog.messages[0])
