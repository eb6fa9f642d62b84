"""The routes for operators and `tinkex workers`: who may use them, what they say, what they do."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.cli.shell import Shell
from tests.server.driving import Http, null_config
from tests.server.test_remote_workers import remote_config, start_server, worker
from tests.server.test_workers import await_all_ready
from tests.support.waiting import wait_until
from tinkex.errors import ServerError
from tinkex.server.embedded import EmbeddedServer

FIELDS = {
    *("name", "worker", "host", "roles", "models", "state", "since_s", "is_draining"),
    *("num_models", "num_adapters", "num_samples", "busy", "backlog_s", "doing", "busy_s"),
    *("num_restarts", "num_snapshots", "num_replayed", "num_samplers"),
}


class Operator:
    """The routes for operators of one server, with its token."""

    def __init__(self, server: EmbeddedServer, data_dir: Path) -> None:
        self.url = f"{server.base_url}/api/v1/operator/workers"
        self.token = (data_dir / "operator-token").read_text().split()[0]

    def ask(self, method: str, path: str = "", **headers: str) -> httpx.Response:
        headers = headers or {"X-Operator-Token": self.token}
        sent = {name.encode(): value.encode() for name, value in headers.items()}
        return httpx.request(method, self.url + path, headers=sent, timeout=60)

    def workers(self) -> dict[str, dict[str, Any]]:
        """The entries by name."""
        answer = self.ask("GET")
        assert answer.status_code == 200, answer.text
        return {each["name"]: each for each in answer.json()["workers"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("operated")


@pytest.fixture(scope="module")
def pair(folder: Path) -> Iterator[EmbeddedServer]:
    """A server with two workers."""
    with EmbeddedServer(null_config(folder, workers=2, verbosity=2)) as running:
        await_all_ready(running)
        yield running


@pytest.fixture
def operator(pair: EmbeddedServer, folder: Path) -> Operator:
    return Operator(pair, folder)


@pytest.fixture
def shell(pair: EmbeddedServer, folder: Path, tmp_path: Path) -> Shell:
    """Command lines against the server, without any API key."""
    environ = {"TINKER_BASE_URL": pair.base_url, "TINKEX_DATA_DIR": str(folder)}
    return Shell(tmp_path, environ)


def test_the_token_is_a_private_file(pair: EmbeddedServer, folder: Path) -> None:
    assert stat.S_IMODE((folder / "operator-token").stat().st_mode) == 0o600


def test_every_worker_is_listed_and_what_waits(operator: Operator) -> None:
    answer = operator.ask("GET").json()
    assert [each["name"] for each in answer["workers"]] == ["worker-0", "worker-1"]
    for each in answer["workers"]:
        assert each.keys() == FIELDS
        assert each["state"] == "ready"
        assert each["roles"] == ["train", "sample"]
        assert each["models"] == ["null", "org/named"]
        assert each["host"]
    nothing = {"train_operations": 0, "train_tokens": 0, "samples": 0, "sample_tokens": 0}
    assert answer["waiting"] == nothing


def test_operations_that_wait_for_a_number_are_counted(
    pair: EmbeddedServer, operator: Operator
) -> None:
    with httpx.Client(base_url=pair.base_url, timeout=30) as client:
        http = Http(client, pair.api_key)
        model = http.model()
        later = http.train(model, 2, tokens=5).json()["request_id"]  # number 1 has not come
        waiting = operator.ask("GET").json()["waiting"]
        assert waiting["train_operations"] == 1
        assert waiting["train_tokens"] > 0
        first = http.train(model, 1).json()["request_id"]
        assert http.result(first)["metrics"]
        assert http.result(later)["metrics"]
    assert operator.ask("GET").json()["waiting"]["train_operations"] == 0


def test_a_worker_is_drained_and_resumed_but_never_the_last_one(operator: Operator) -> None:
    drained = operator.ask("POST", "/worker-0/drain")
    assert (drained.status_code, drained.json()["is_draining"]) == (200, True)
    assert operator.workers()["worker-0"]["is_draining"]
    refused = operator.ask("POST", "/worker-1/drain")
    assert (refused.status_code, refused.json()["code"]) == (400, "last-worker")
    assert not operator.workers()["worker-1"]["is_draining"]
    resumed = operator.ask("POST", "/worker-0/resume")
    assert (resumed.status_code, resumed.json()["is_draining"]) == (200, False)


def test_no_key_of_a_tenant_opens_them_and_the_token_opens_nothing_else(
    pair: EmbeddedServer, operator: Operator
) -> None:
    with httpx.Client(base_url=pair.base_url, timeout=30) as client:
        jwt = Http(client, pair.api_key).post("auth/token")["jwt"]
    wrong: list[dict[str, str]] = [
        {"X-API-Key": pair.api_key},
        {"X-API-Key": operator.token},
        {"X-Operator-Token": ""},
        {"X-Operator-Token": "é"},
        {"X-Operator-Token": operator.token[:-2]},
        {"X-Operator-Token": operator.token + "00"},
        {"X-Operator-Token": f"Bearer {operator.token}"},
        *({"X-Operator-Token": each, "X-API-Key": each} for each in (pair.api_key, jwt)),
    ]
    for method, path in (("GET", ""), ("POST", "/worker-0/drain"), ("POST", "/none/resume")):
        for headers in wrong:
            answer = operator.ask(method, path, **headers)
            assert answer.status_code == 401, (path, headers)
            assert answer.json()["code"] == "not-an-operator"
            assert operator.token not in answer.text + str(answer.headers)
    assert not any(each["is_draining"] for each in operator.workers().values())
    for path in ("sessions", "training_runs", "operator", "get_server_capabilities"):
        for name in ("X-API-Key", "X-Operator-Token"):
            url = f"{pair.base_url}/api/v1/{path}"
            assert httpx.get(url, headers={name: operator.token}).status_code == 401


@pytest.mark.parametrize(
    "name",
    ["../worker-0", "..", "x" * 10_000, "wörker-0", "worker-0\n", "worker-2", "worker-00", "%00"],
    ids=lambda name: name[:12].encode("unicode_escape").decode(),
)
@pytest.mark.parametrize("action", ["drain", "resume"])
def test_a_name_that_no_worker_has_is_not_found(operator: Operator, name: str, action: str) -> None:
    answer = operator.ask("POST", f"/{quote(name, safe='')}/{action}")
    assert answer.status_code == 404
    assert answer.json()["code"] in {"unknown-worker", "no-such-route"}
    assert len(answer.text) < 1000
    assert not any(each["is_draining"] for each in operator.workers().values())


def test_the_token_is_in_no_log(pair: EmbeddedServer, operator: Operator) -> None:
    operator.ask("GET")
    assert "GET /api/v1/operator/workers 200" in pair.log()
    assert operator.token not in pair.log()


def test_the_command_lists_drains_and_resumes(shell: Shell, operator: Operator) -> None:
    listed = shell("workers")
    assert listed.returncode == 0, listed.stderr
    header, *rows = listed.stdout.splitlines()
    assert header.split()[:4] == ["name", "host", "roles", "state"]
    assert [row.split()[0] for row in rows] == ["worker-0", "worker-1"]
    assert "Waiting: 0 operations (0 tokens), 0 samples (0 tokens)." in listed.stderr
    drained = shell("workers", "drain", "worker-1", "--wait", "--json")
    assert drained.returncode == 0, drained.stderr
    assert json.loads(drained.stdout)["is_draining"]
    assert "draining" in shell("workers").stdout
    last = shell("workers", "drain", "worker-0", "--json")
    assert (last.returncode, last.stdout) == (1, "")
    assert json.loads(last.stderr)["error"]["code"] == "last-worker"
    assert shell("workers", "resume", "worker-1").returncode == 0
    assert not operator.workers()["worker-1"]["is_draining"]
    assert {*json.loads(shell("workers", "--json").stdout)} == {"workers", "waiting"}


def test_what_is_wrong_with_a_command_is_said_with_its_exit_code(
    shell: Shell, tmp_path: Path, operator: Operator
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("00" * 32)
    named = ("--operator-token-file", str(wrong))
    refused = shell("workers", *named)
    assert refused.returncode == 3
    assert "--operator-token-file" in refused.stderr
    assert "API key" not in refused.stderr
    assert shell("workers", "drain", "unknown").returncode == 4
    missing = shell("workers", TINKEX_DATA_DIR=str(tmp_path / "none"))
    assert missing.returncode == 2
    assert "no operator token" in missing.stderr
    wrong.write_text("")
    assert shell("workers", *named).returncode == 2
    wrong.write_text(f"{operator.token} and more")
    assert shell("workers", *named).returncode == 0
    assert shell("workers", "--url", "http://127.0.0.1:9").returncode == 7


@pytest.mark.parametrize("words", [(), ("drain", "worker-1"), ("resume", "worker-1")])
def test_the_token_is_sent_to_no_default_server(
    shell: Shell, operator: Operator, words: tuple[str, ...]
) -> None:
    refused = shell("workers", *words, TINKER_BASE_URL="")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--base-url" in refused.stderr
    assert operator.token not in refused.stderr


def test_the_server_of_a_settings_file_gets_the_token(
    shell: Shell, pair: EmbeddedServer, tmp_path: Path
) -> None:
    folder = tmp_path / "settings" / "tinkex"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(f'[client]\nbase_url = "{pair.base_url}"\n')
    listed = shell("workers", TINKER_BASE_URL="", XDG_CONFIG_HOME=str(folder.parent))
    assert listed.returncode == 0, listed.stderr


def test_a_token_file_that_is_named_must_exist_and_be_private(tmp_path: Path) -> None:
    named = tmp_path / "mounted-token"
    config = null_config(tmp_path / "data", operator_token_file=named)
    with (
        pytest.raises(ServerError, match="there is no such file"),
        closing(EmbeddedServer(config)) as server,
    ):
        server.start()
    named.write_text("ab" * 32 + "\n")
    named.chmod(0o644)
    with (
        pytest.raises(ServerError, match="must be a private file"),
        closing(EmbeddedServer(config)) as server,
    ):
        server.start()
    named.chmod(0o600)
    with closing(EmbeddedServer(config)) as server:
        server.start()
        url = f"{server.base_url}/api/v1/operator/workers"
        assert httpx.get(url, headers={"X-Operator-Token": "ab" * 32}).status_code == 200
        assert httpx.get(url, headers={"X-Operator-Token": "ac" * 32}).status_code == 401
    assert not (tmp_path / "data" / "operator-token").exists()


@pytest.mark.timeout(300)
def test_workers_from_elsewhere_go_by_their_own_names(tmp_path: Path) -> None:
    config = remote_config(tmp_path / "data")
    server = EmbeddedServer(config)
    with ExitStack() as stack:
        stack.callback(server.close)
        started = start_server(server, config, tmp_path, stack, "one", "two")
        operator = Operator(server, config.data_dir)
        wait_until(lambda: set(operator.workers()) == {"one", "two"})
        assert operator.ask("POST", "/one/drain").json()["is_draining"]
        assert operator.ask("POST", "/two/drain").json()["code"] == "last-worker"
        started[0].kill()
        wait_until(lambda: set(operator.workers()) == {"two"})
        stack.enter_context(worker(config, tmp_path, "a b"))  # not fit for a path as it is
        wait_until(lambda: len(operator.workers()) == 2)
        (other,) = set(operator.workers()) - {"two"}
        assert other.startswith("worker-")
        entry = operator.workers()[other]
        assert entry["worker"].startswith("a b at ")
        assert not entry["is_draining"], "the slot was drained for another worker"
        assert operator.ask("POST", "/two/drain").status_code == 200
