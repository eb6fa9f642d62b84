"""What a program prints that fails: its own line, then one of ours, then what to do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tinkex
from tests.server.driving import Http

SCRIPT = Path(__file__).parent / "programs" / "failing_script.py"
PACKAGE = str(Path(tinkex.__file__).parent)
FRAME = re.compile(r'^  File "(.+)", line \d+, in ', re.MULTILINE)


def stderr_of(base_url: str, api_key: str, mistake: str, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), base_url, api_key, mistake],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "TINKEX_DEBUG": "", **environ},
    )
    assert done.returncode == 1, done.stderr
    return done.stderr


def own_frames(text: str) -> int:
    return sum(file.startswith(PACKAGE) for file in FRAME.findall(text))


@pytest.mark.parametrize(
    "mistake",
    ["constructor", "result", "outcome", "input", "async", "async-constructor", "address"],
)
def test_the_users_line_comes_last_but_one(http: Http, mistake: str) -> None:
    text = stderr_of(str(http.client.base_url), http.api_key, mistake)
    files = FRAME.findall(text)
    assert own_frames(text) == 1, text
    assert files[-1].startswith(PACKAGE)
    assert files[-2] == str(SCRIPT)
    before = text[: text.rindex(f'  File "{PACKAGE}')]
    assert "# the mistake" in before.splitlines()[-2] + before.splitlines()[-1]
    assert "tinkex.errors." in text
    assert "concurrent/futures" not in text
    assert "another exception" not in text


def test_frames_of_the_users_own_loss_stay(http: Http) -> None:
    text = stderr_of(str(http.client.base_url), http.api_key, "own-loss")
    assert own_frames(text) == 1, text
    assert "# raised here" in text
    assert "# the mistake" in text


def test_an_unreachable_server_is_one_line_for_each_cause() -> None:
    text = stderr_of("http://127.0.0.1:9", "tml-key", "constructor")
    assert own_frames(text) == 1, text
    assert "aiohttp/" not in text
    assert text.count("direct cause") <= 2
    assert "APIConnectionError" in text


def test_the_debug_setting_shows_all_frames(http: Http) -> None:
    text = stderr_of(str(http.client.base_url), http.api_key, "result", TINKEX_DEBUG="1")
    assert own_frames(text) > 3, text
