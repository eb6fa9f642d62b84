"""`tinkex auth` against a real server: a key that is given once and then found by itself."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.cli.shell import PATIENCE_S, TINKEX, Shell
from tests.cli.test_terminal import Terminal


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A user who has set nothing."""
    return Shell(tmp_path, {"XDG_CONFIG_HOME": str(tmp_path / "config")})


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    return tmp_path / "config/tinkex/credentials.json"


@pytest.fixture
def url(live: dict[str, str]) -> str:
    return live["TINKER_BASE_URL"]


@pytest.fixture
def key(live: dict[str, str]) -> str:
    return live["TINKER_API_KEY"]


def test_a_key_typed_once_is_found_by_commands_and_programs(
    shell: Shell, stored: Path, url: str, key: str
) -> None:
    terminal = Terminal(shell, "auth", "login", "--base-url", url)
    terminal.wait_for(f"API key for {url}: ")
    terminal.type(f"{key}\n")
    terminal.wait_for(f"Logged in to {url}")
    assert terminal.end() == 0
    assert key not in terminal.text, "what is typed is not shown"
    assert stored.stat().st_mode & 0o777 == 0o600
    assert shell("run", "list").returncode == 0
    program = "import tinkex; tinkex.ServiceClient().get_server_capabilities(); print('answered')"
    ran = subprocess.run(
        [sys.executable, "-c", program], env=shell.environ, capture_output=True, text=True
    )
    assert ran.stdout == "answered\n", ran.stderr


def test_the_key_may_come_by_a_pipe_or_a_file_but_never_as_an_argument(
    shell: Shell, stored: Path, url: str, key: str
) -> None:
    assert shell("auth", "login", "--base-url", url, stdin=f"{key}\n").returncode == 0
    assert shell("auth", "logout").returncode == 0
    assert not stored.exists()
    (shell.folder / "key").write_text(f"{key}\n")
    assert shell("auth", "login", "--base-url", url, "--key-file", "key").returncode == 0
    assert stored.exists()
    for argument in ("--api-key", "--key"):
        refused = shell("auth", "login", "--base-url", url, argument, key)
        assert refused.returncode == 2
    assert shell("auth", "login", key).returncode == 2


def test_a_key_that_is_refused_is_not_stored(shell: Shell, stored: Path, url: str) -> None:
    ran = shell("auth", "login", "--base-url", url, stdin="tml-nothing-known-about-this-one\n")
    assert ran.returncode == 3
    assert "nothing-known" not in ran.stderr
    assert not stored.exists()
    assert shell("auth", "login", "--base-url", url, stdin="\n").returncode == 2
    away = shell("auth", "login", "--base-url", "http://127.0.0.1:9", stdin="tml-a\n")
    assert away.returncode == 7


def test_the_status_says_what_is_in_force_and_why(
    shell: Shell, stored: Path, url: str, key: str
) -> None:
    before = shell("auth", "status", "--base-url", url, "--json")
    assert before.returncode == 3
    assert json.loads(before.stdout)["is_accepted"] is False
    shell("auth", "login", "--base-url", url, stdin=key)
    ran = shell("auth", "status", "--json")
    assert ran.returncode == 0, ran.stderr
    masked = f"tml-…{key[-4:]}"
    assert json.loads(ran.stdout) == {
        "base_url": url,
        "base_url_origin": f"file {stored}",
        "key": masked,
        "key_origin": f"file {stored}",
        "is_accepted": True,
        "credentials_file": str(stored),
        "servers": [{"base_url": url, "key": masked, "is_default": True}],
    }
    shown = shell("auth", "status")
    assert key not in shown.stdout + shown.stderr
    wrong = shell("auth", "status", TINKER_API_KEY="tml-x" * 5, TINKER_BASE_URL=url)
    assert wrong.returncode == 3
    assert "environment TINKER_API_KEY" in wrong.stdout


def test_whoami_requests_the_server(shell: Shell, url: str, key: str) -> None:
    assert shell("auth", "login", "--base-url", url, stdin=f"{key}\n").returncode == 0
    shown = json.loads(shell("auth", "whoami", "--json").stdout)
    assert shown.keys() == {"user_urn", "org_urn", "email"}
    assert shown["user_urn"].startswith("tml:user:")
    assert f"user_urn  {shown['user_urn']}" in shell("auth", "whoami").stdout
    shell.environ["TINKER_API_KEY"] = "tml-nothing-known-about-this-one"
    assert shell("auth", "whoami", "--base-url", url).returncode == 3


def test_the_key_that_a_command_prints_is_sent(shell: Shell, url: str, key: str) -> None:
    given = {"TINKER_BASE_URL": url, "TINKER_CREDENTIAL_CMD": f"printf %s {key}"}
    ran = shell("auth", "status", "--json", **given)
    assert ran.returncode == 0, ran.stderr
    status = json.loads(ran.stdout)
    assert (status["is_accepted"], status["key"]) == (True, f"tml-…{key[-4:]}")
    assert status["key_origin"] == "environment TINKER_CREDENTIAL_CMD"
    whoami = shell("auth", "whoami", "--json", **given)
    assert json.loads(whoami.stdout)["user_urn"].startswith("tml:user:")
    assert key not in ran.stdout + ran.stderr + whoami.stdout + whoami.stderr
    given["TINKER_CREDENTIAL_CMD"] = "echo tml-of-nobody-known"
    assert shell("auth", "whoami", **given).returncode == 3


def test_a_login_that_something_else_wins_over_says_so(shell: Shell, url: str, key: str) -> None:
    arguments = ("auth", "login", "--base-url", url)
    ran = shell(*arguments, stdin=key, TINKER_API_KEY="tml-of-another-server")
    assert ran.returncode == 0
    assert "another api_key wins over it: environment TINKER_API_KEY" in ran.stderr


def test_a_file_open_to_others_is_refused_with_the_command(
    shell: Shell, stored: Path, url: str, key: str
) -> None:
    shell("auth", "login", "--base-url", url, stdin=key)
    stored.chmod(0o644)
    ran = shell("run", "list")
    assert ran.returncode == 2
    assert f"chmod 600 {stored}" in ran.stderr
    subprocess.run(["chmod", "600", str(stored)], check=True)
    assert shell("run", "list").returncode == 0


def test_the_key_for_programs_that_know_only_the_environment(
    shell: Shell, url: str, key: str
) -> None:
    shell("auth", "login", "--base-url", url, stdin=key)
    script = "export TINKER_API_KEY=$(tinkex auth key); test ${#TINKER_API_KEY} = " + str(len(key))
    assert shell.script(script).returncode == 0
    assert shell("auth", "logout", "--base-url", url).returncode == 0
    assert shell("auth", "key", "--base-url", url).returncode == 3
    assert shell("auth", "logout", "--base-url", url).returncode == 1


def start_server(shell: Shell, *options: str) -> tuple[subprocess.Popen[str], str]:
    """A server of this user's, and what it said at its start."""
    process = subprocess.Popen(
        [TINKEX, "serve", "--port", "0", "--device", "null", "--data-dir", "data", *options],
        cwd=shell.folder,
        env=shell.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    said = ""
    while "create_lora_training_client" not in said:
        line = process.stdout.readline()
        assert line, said
        said += line
    wait_until_healthy(re.findall(r"Listening on (\S+)", said)[0])
    return process, said


def wait_until_healthy(url: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/healthz").is_success:
                return
        time.sleep(0.05)
    raise AssertionError("the server never became healthy")


def stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


def test_a_server_may_log_its_user_in(shell: Shell, stored: Path) -> None:
    for _ in range(2):  # the second time there is a key, and another port
        process, said = start_server(shell, "--login")
        try:
            url = re.findall(r"Listening on (\S+)", said)[0]
            assert "tml-" not in said, "the key is stored and not shown"
            assert f"$(tinkex auth key --base-url {url})" in said
            ran = shell("auth", "status", "--json")
            assert ran.returncode == 0, ran.stderr
            assert json.loads(ran.stdout)["base_url"] == url
        finally:
            stop(process)
    listed = json.loads(shell("keys", "list", "--data-dir", "data", "--json").stdout)
    assert len(listed["keys"]) == 1, "the stored key is good for the server's new address"


def test_a_user_who_lost_the_key_may_be_logged_in_at_the_next_start(
    shell: Shell, stored: Path
) -> None:
    stop(start_server(shell)[0])
    process, _ = start_server(shell, "--login")
    try:
        assert shell("auth", "status").returncode == 0
    finally:
        stop(process)
    (owner,) = json.loads(shell("keys", "list", "--data-dir", "data", "--json").stdout)["owners"]
    assert owner["keys"] == 2


def test_a_server_whose_user_cannot_be_logged_in_starts_and_says_why(
    shell: Shell, stored: Path
) -> None:
    stored.parent.mkdir(parents=True)
    stored.write_text("{}")
    stored.chmod(0o644)
    process, said = start_server(shell, "--login")
    stop(process)
    assert "Not logged in:" in said
    assert f"chmod 600 {stored}" in said
    assert re.search(r"API key of \S+ \(shown once", said)


def test_logout_through_a_link_leaves_no_key_behind(
    shell: Shell, stored: Path, tmp_path: Path, url: str, key: str
) -> None:
    target = tmp_path / "mounted" / "credentials.json"
    target.parent.mkdir()
    stored.parent.mkdir(parents=True)
    stored.symlink_to(target)
    assert shell("auth", "login", "--base-url", url, stdin=f"{key}\n").returncode == 0
    assert key in target.read_text()
    assert shell("auth", "logout").returncode == 0
    assert not target.exists()
