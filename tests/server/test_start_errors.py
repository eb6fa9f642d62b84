"""A server that cannot start says why, ends with exit code 2 and leaves no process."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import sqlite3
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.server.test_cli import TINKEX, serving
from tinkex.engine.convert.tiny_model import make_tiny_model

_HANG_S = 90.0
_PR_CAPBSET_DROP = 24
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2


@dataclass(frozen=True)
class Ended:
    """How a `tinkex serve` ended, and the processes it left behind."""

    code: int
    out: str
    err: str
    left: list[psutil.Process]


def serve(*options: str, **variables: str) -> Ended:
    """Runs `tinkex serve` to its end; root obeys the permissions of files as others do."""
    mark = f"TINKEX_TEST_MARK={uuid.uuid4()}"
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", **dict([mark.split("=")]), **variables}
    ran = subprocess.run(
        [*TINKEX, "serve", *options],
        env=environ,
        capture_output=True,
        text=True,
        timeout=_HANG_S,
        preexec_fn=_obey_permissions,
    )
    return Ended(ran.returncode, ran.stdout, ran.stderr, _marked(mark))


def _obey_permissions() -> None:
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None)
        for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
            libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


def _marked(mark: str) -> list[psutil.Process]:
    name, _, value = mark.partition("=")
    found = []
    for process in psutil.process_iter():
        try:
            is_ours = process.environ().get(name) == value
        except psutil.Error:
            continue
        if is_ours and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def refused(ended: Ended, *words: str) -> None:
    """Fails unless it ended as a start should that cannot succeed."""
    assert ended.code == 2, (ended.code, ended.err)
    assert "Traceback" not in ended.err
    assert "stumbled" not in ended.err
    assert "API key" not in ended.out, "no key is shown by a server that does not run"
    errors = [line for line in ended.err.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1, ended.err
    output = ended.err[ended.err.index("Error: ") :]
    for word in words:
        assert word in output, output
    assert ended.left == []


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def model(tiny: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(tiny, tmp_path / "model"))


@pytest.fixture
def at(tmp_path: Path) -> list[str]:
    """Options for a data folder and a free port."""
    return ["--port", "0", "--data-dir", str(tmp_path / "data")]


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("cuda", ["device='cuda'", "CUDA", "--device cpu"]),
        ("cuda:1", ["device='cuda:1'", "CUDA"]),
        ("gpu", ["device='gpu'", "cpu", "cuda"]),
        ("meta", ["device='meta'"]),
        ("cpu:x", ["device='cpu:x'"]),
        ("", ["device=''"]),
        ("null:soon", ["device='null:soon'", "null:0.05"]),
    ],
)
def test_wrong_device(at: list[str], tiny: Path, device: str, words: list[str]) -> None:
    import torch

    if device.startswith("cuda") and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    refused(serve(*at, "--model", f"tiny={tiny}", "--device", device), *words)


@pytest.mark.parametrize("dtype", ["fp16", "int4", "int8", "nn", ""])
def test_wrong_dtype(at: list[str], tiny: Path, dtype: str) -> None:
    refused(serve(*at, "--model", f"tiny={tiny}", "--dtype", dtype), repr(dtype), "bfloat16")


@pytest.mark.parametrize("number", ["0", "-1", "many"])
def test_wrong_number_of_threads(at: list[str], tiny: Path, number: str) -> None:
    refused(serve(*at, "--model", f"tiny={tiny}", "--num-threads", number), number)


def _no_config(model: Path) -> None:
    (model / "config.json").unlink()


def _torn_config(model: Path) -> None:
    (model / "config.json").write_text('{"hidden_size": ')


def _locked_config(model: Path) -> None:
    (model / "config.json").chmod(0)


def _no_weights(model: Path) -> None:
    (model / "model.safetensors").unlink()


def _torn_weights(model: Path) -> None:
    with (model / "model.safetensors").open("r+b") as file:
        file.truncate(1000)


def _locked_weights(model: Path) -> None:
    (model / "model.safetensors").chmod(0)


def _locked_folder(model: Path) -> None:
    model.chmod(0)


def _a_file(model: Path) -> None:
    shutil.rmtree(model)
    model.write_text("GGUF")


def _nothing(model: Path) -> None:
    shutil.rmtree(model)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_nothing, ["is neither a local folder nor"]),
        (_a_file, ["is a file", "folder"]),
        (_locked_folder, ["Permission denied"]),
        (_no_config, ["config.json"]),
        (_torn_config, ["config.json", "cannot be read"]),
        (_locked_config, ["config.json", "Permission denied"]),
        (_no_weights, ["model.safetensors"]),
        (_torn_weights, ["model.safetensors", "cannot be read"]),
        (_locked_weights, ["model.safetensors", "Permission denied"]),
    ],
)
def test_model_that_cannot_be_read(
    at: list[str], model: Path, spoil: Callable[[Path], None], words: list[str]
) -> None:
    spoil(model)
    try:
        refused(serve(*at, "--model", f"tiny={model}"), "model", *words)
    finally:
        if model.is_dir():
            model.chmod(0o700)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_port_in_use(tmp_path: Path, taken_port: int) -> None:
    data = ["--device", "null", "--data-dir", str(tmp_path)]
    refused(serve(*data, "--port", str(taken_port)), f"127.0.0.1:{taken_port}", "--port")


@pytest.mark.parametrize("port", ["65536", "-1", "http"])
def test_port_that_is_none(tmp_path: Path, port: str) -> None:
    refused(serve("--device", "null", "--data-dir", str(tmp_path), "--port", port), port)


@pytest.mark.parametrize("host", ["203.0.113.7", "no.such.host.invalid", "x" * 100, "::g"])
def test_address_that_cannot_be_bound(at: list[str], host: str) -> None:
    refused(serve(*at, "--device", "null", "--host", host), host, "--host", "127.0.0.1")


def test_data_folder_of_a_newer_version(at: list[str], tmp_path: Path) -> None:
    with serving(tmp_path / "data"):
        pass
    database = tmp_path / "data" / "tinkex.db"
    with closing(sqlite3.connect(database)) as db, db:
        db.execute("INSERT INTO migrations VALUES ('m999_of_tomorrow', 0)")
    before = database.read_bytes()
    refused(serve(*at, "--device", "null"), "newer version", "m999_of_tomorrow", "--data-dir")
    assert database.read_bytes() == before


@pytest.mark.parametrize("is_default", [False, True])
def test_data_folder_that_is_not_writable(tmp_path: Path, is_default: bool) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    at = ["--port", "0", "--data-dir", str(locked / "data")]
    ended = serve(*at, *([] if is_default else ["--device", "null"]))
    refused(ended, str(locked / "data"), "Permission denied", "--data-dir")


def test_data_folder_that_is_a_file(at: list[str], tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    refused(serve(*at, "--device", "null"), "data", "is a file")


def test_data_folder_in_use(at: list[str], tmp_path: Path) -> None:
    with serving(tmp_path / "data") as running:
        ended = serve(*at, "--device", "null")
        refused(ended, str(tmp_path / "data"), "--data-dir", f"process {running['pid']}")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nonsense", ["nonsense", "postgresql://"]),
        ("oracle://host/name", ["oracle"]),
        ("postgresql://me:the-password@127.0.0.1:1/name", ["127.0.0.1:1", "Connection refused"]),
        ("sqlite:////proc/tinkex.db", ["/proc/tinkex.db"]),
    ],
)
def test_database_that_cannot_be_opened(at: list[str], url: str, words: list[str]) -> None:
    ended = serve(*at, "--device", "null", "--database-url", url)
    refused(ended, *words, "--database-url")
    assert "the-password" not in ended.out + ended.err


def test_database_that_is_none(at: list[str], tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "tinkex.db").write_text("This is no database. " * 100)
    refused(serve(*at, "--device", "null"), "tinkex.db", "damaged")
