"""A start that cannot be reported ends the server and its first key; a stop is never lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.server.driving import null_config
from tests.server.test_cli import TINKEX, serving
from tinkex.cli.serve_keys import about_keys
from tinkex.server.admin import list_keys
from tinkex.server.process import ServerProcess, Started
from tinkex.store import StoreError

_HANG_S = 60.0


@contextmanager
def stopped_after(process: ServerProcess, limit_s: float) -> Iterator[None]:
    """Ends a server that goes on by mistake, so that the test fails instead of hanging."""
    timer = threading.Timer(limit_s, process.stop)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def test_failed_report_ends_the_server_and_revokes_the_first_key(tmp_path: Path) -> None:
    shown: list[str | None] = []

    def fail(started: Started) -> None:
        shown.append(started.new_key)
        raise OSError("nothing can be written")

    process = ServerProcess(null_config(tmp_path))
    with stopped_after(process, 20), pytest.raises(OSError, match="nothing can be written"):
        process.run(on_ready=fail)
    assert [key.revoked_at is not None for key in list_keys(tmp_path, None)] == [True]

    again = ServerProcess(null_config(tmp_path))

    def note(started: Started) -> None:
        shown.append(started.new_key)
        again.stop()

    with stopped_after(again, 20):
        again.run(on_ready=note)
    assert None not in shown
    assert len(set(shown)) == 2, "the next start makes another"


def test_first_key_that_cannot_be_stored_ends_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise StoreError("The disk of the server is full.")

    monkeypatch.setattr("tinkex.server.process.make_first_key", fail)
    process, greeted = ServerProcess(null_config(tmp_path)), []
    with stopped_after(process, 20), pytest.raises(StoreError, match="is full"):
        process.run(on_ready=greeted.append)
    assert greeted == []


@pytest.mark.parametrize("name", ["closed pipe", "/dev/full"])
def test_serve_without_a_usable_stdout_fails_and_keeps_no_key(tmp_path: Path, name: str) -> None:
    if name == "/dev/full":
        out = os.open(name, os.O_WRONLY)
    else:
        reading, out = os.pipe()
        os.close(reading)
    options = ["--port", "0", "--device", "null", "--data-dir", str(tmp_path)]
    ended = subprocess.run(
        [*TINKEX, "serve", *options], stdout=out, stderr=subprocess.PIPE, text=True, timeout=_HANG_S
    )
    os.close(out)
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stderr.count("Error: ") == 1, ended.stderr
    assert "standard output" in ended.stderr
    with serving(tmp_path) as server:
        assert len(server["keys"]) == 1


def test_a_login_that_the_store_refuses_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StoreError("The disk of the server is full.", hint="Delete checkpoints.")

    monkeypatch.setenv("TINKEX_CREDENTIALS_FILE", str(tmp_path / "credentials.json"))
    monkeypatch.setattr("tinkex.server.admin.create_key", fail)
    reported = about_keys(Started(url="http://127.0.0.1:9"), null_config(tmp_path), is_login=True)
    assert reported.lines[:2] == [
        "Not logged in: The disk of the server is full.",
        "  Delete checkpoints.",
    ]


_STOPPED_EARLY = """
import os, signal, sys
from pathlib import Path
from tests.server.driving import null_config
from tinkex.server.process import ServerProcess

process = ServerProcess(null_config(Path(sys.argv[1])))
{code}
print("returned")
"""


@pytest.mark.parametrize(
    "code",
    [
        "process.run(on_listening=lambda _: os.kill(os.getpid(), signal.SIGTERM))",
        "process.run(on_listening=lambda _: os.kill(os.getpid(), signal.SIGINT))",
        "process.run(on_listening=lambda _: process.stop())",
        "process.stop(); process.run()",
    ],
)
def test_stop_before_requests_are_served_is_not_lost(tmp_path: Path, code: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _STOPPED_EARLY.format(code=code), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=_HANG_S,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert (ended.returncode, ended.stdout) == (0, "returned\n"), ended.stderr
