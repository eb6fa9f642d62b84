"""`tinkex status`, `tinkex top` and `tinkex cancel` against a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.cli.shell import Shell
from tests.cli.test_terminal import Terminal
from tests.server.driving import Http, null_config
from tinkex.scheduler import SchedulerConfig
from tinkex.server.embedded import EmbeddedServer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("watched")


@pytest.fixture(scope="module")
def watched(folder: Path) -> Iterator[EmbeddedServer]:
    """A server that waits long for missing numbers, so that operations wait as long as wanted."""
    scheduler = SchedulerConfig(hole_grace_s=600.0)
    with EmbeddedServer(null_config(folder, scheduler=scheduler)) as running:
        yield running


@pytest.fixture
def http(watched: EmbeddedServer) -> Iterator[Http]:
    with httpx.Client(base_url=watched.base_url, timeout=60) as client:
        yield Http(client, watched.api_key)


@pytest.fixture
def shell(watched: EmbeddedServer, tmp_path: Path) -> Shell:
    environ = {"TINKER_BASE_URL": watched.base_url, "TINKER_API_KEY": watched.api_key}
    return Shell(tmp_path, environ)


def test_status_is_one_screen(shell: Shell, http: Http, folder: Path) -> None:
    model = http.model()
    shown = shell("status")
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert len(lines) <= 24
    assert all(len(line) <= 80 for line in lines)
    labels = {line.split()[0] for line in lines if line and not line.startswith(" ")}
    assert {"Models", "Engine", "Queue", "Speed", "Memory", "Disk", "worker-0"} <= labels
    assert any(line.startswith(model) for line in lines)
    assert json.loads(shell("status", "--json").stdout)["state"] == "ready"


def test_the_operator_sees_whose_work_waits(shell: Shell, http: Http, folder: Path) -> None:
    model = http.model()
    http.train(model, 2)
    shown = shell("status", "--operator", "--data-dir", str(folder), TINKER_API_KEY="")
    assert shown.returncode == 0, shown.stderr
    assert "1 operation and 0 samples waiting" in shown.stdout
    named = str(folder / "operator-token")
    as_json = shell("status", "--operator-token-file", named, "--json")
    assert json.loads(as_json.stdout)["queue"]["tenants"][0]["training"] == 1
    assert shell("cancel", "--run", model).returncode == 0


def test_waiting_operations_are_cancelled_and_their_numbers_are_used_up(
    shell: Shell, http: Http
) -> None:
    model = http.model()
    waiting = [http.train(model, number).json()["request_id"] for number in (2, 3)]
    step = http.step(model, 4)["request_id"]
    done = shell("cancel", waiting[1], "--json")
    assert json.loads(done.stdout) == {"samples": 0, "operations": 1}
    assert "Cancelled 2 operations." in shell("cancel", "--run", model).stderr
    for request_id in (*waiting, step):
        answer = http.poll(request_id).json()
        assert answer["category"] == "user"
        assert answer["code"] == "cancelled"
    # The first number has not come yet; those behind it are used up and nothing waits for them.
    first = http.train(model, 1).json()["request_id"]
    assert http.result(first)["metrics"]
    assert http.result(http.train(model, 5).json()["request_id"])["metrics"]
    nothing = shell("cancel", first)
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert "Nothing was cancelled" in nothing.stderr


def test_all_samples_of_a_tenant_are_cancelled(shell: Shell, http: Http, folder: Path) -> None:
    assert json.loads(shell("cancel", "--samples", "--json").stdout)["samples"] == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ((), 2),
        (("--samples", "--run", "x"), 2),
        (("0123",), 4),
        (("--run", "no-such-run"), 4),
    ],
)
def test_what_cannot_be_cancelled_is_refused(
    shell: Shell, arguments: tuple[str, ...], code: int
) -> None:
    assert shell("cancel", *arguments).returncode == code


def test_top_redraws_until_q(shell: Shell, http: Http) -> None:
    top = Terminal(shell, "top", "--every", "0.2")
    top.wait_for("q ends")
    top.wait_for("0 operations of 0 runs waiting")
    model = http.model()
    http.train(model, 2)
    top.wait_for("1 operation of 1 run waiting")
    http.post("cancel", {"run_id": model})
    top.wait_for("0 operations of 0 runs waiting")
    top.type("q")
    assert top.end() == 0


def test_top_says_when_the_server_is_gone_and_ends_at_ctrl_c(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with EmbeddedServer(null_config(tmp_path_factory.mktemp("gone"))) as server:
        environ = {"TINKER_BASE_URL": server.base_url, "TINKER_API_KEY": server.api_key}
        top = Terminal(Shell(tmp_path, environ), "top", "--every", "0.2")
        top.wait_for("ready")
    top.wait_for("No answer")
    top.type("\x03")
    assert top.end() in {0, 130}


def test_top_needs_a_terminal(shell: Shell) -> None:
    refused = shell("top")
    assert refused.returncode == 2
    assert "tinkex status --json" in refused.stderr
