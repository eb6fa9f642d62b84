"""A key that a command prints, and the headers that pass Cloudflare Access."""

import json
import pickle
import sys
import traceback

import pytest

from tinkex import auth
from tinkex.config import Config
from tinkex.errors import ConfigError

KEY = "tml-Q7x9dKpW3mNbV5cZ8sL2a1b2"
CANARY = "canary-8s7d6f5g"


def config_with(command, **more):
    return Config(environ={"TINKER_CREDENTIAL_CMD": command}, files=[], **more)


@pytest.fixture
def script(tmp_path):
    """Makes a command from Python source; the second file counts how often it ran."""

    def make(source):
        path, runs = tmp_path / "command.py", tmp_path / "runs"
        path.write_text(f"with open({str(runs)!r}, 'a') as file:\n    file.write('x')\n{source}\n")
        return f"{sys.executable} {path}", runs

    return make


def test_the_command_runs_once_and_only_when_the_key_is_needed(script):
    command, runs = script(f"print({KEY!r})")
    config = config_with(command)
    assert config.origin("api_key") == "environment TINKER_CREDENTIAL_CMD"
    assert config.has_api_key
    assert KEY[-4:] not in repr(config) + json.dumps(config.as_dict())
    assert not runs.exists()

    assert config.require_api_key() == config.api_key == KEY
    assert config_with(command).tenant_key == Config(api_key=KEY, environ={}, files=[]).tenant_key
    assert pickle.loads(pickle.dumps(config)).api_key == KEY
    assert runs.read_text() == "x"
    assert KEY[-4:] not in repr(config) + json.dumps(config.as_dict())


def test_a_shell_is_used_only_where_one_is_needed(tmp_path):
    (tmp_path / "key").write_text(KEY + "\n")
    assert config_with(f"cat {tmp_path}/key | tr -d '\\n'").api_key == KEY
    assert config_with(f"cat '{tmp_path}/key'").api_key == KEY
    with pytest.raises(ConfigError, match="could not be started: No such file"):
        config_with("no-such-program-of-anyone").require_api_key()
    with pytest.raises(ConfigError, match="exit code 127"):
        config_with("no-such-program-of-anyone | cat; exit 127").require_api_key()


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (
            f"import sys; print({CANARY!r}); print({CANARY!r}, file=sys.stderr); sys.exit(3)",
            "code 3",
        ),
        (f"import sys; print({CANARY!r}, file=sys.stderr)", "printed nothing"),
        (f"print({CANARY!r}, 'and more')", "no API key, which must be one word"),
        (f"print({CANARY!r} + chr(233))", "no API key, which must be printable ASCII"),
    ],
)
def test_a_failure_is_one_error_that_shows_no_output_and_is_tried_again(script, source, problem):
    command, runs = script(source)
    config = config_with(f"{command} --token=vault-secret")
    with pytest.raises(ConfigError, match=problem) as caught:
        config.require_api_key()
    error = caught.value
    assert error.code == "credential-command"
    assert (error.__cause__, error.__context__) == (None, None)
    output = traceback.StackSummary.extract(
        traceback.walk_tb(error.__traceback__.tb_next), capture_locals=True
    )
    for text in ("".join(output.format()), str(error)):
        assert CANARY not in text
    assert "vault-secret" not in str(error)
    with pytest.raises(ConfigError):
        config.require_api_key()
    assert runs.read_text() == "xx"


def test_a_given_key_comes_before_the_command_and_a_stored_one_after(script, tmp_path):
    command, runs = script(f"print({KEY!r})")
    environ = {"TINKER_CREDENTIAL_CMD": command, "HOME": str(tmp_path)}
    assert Config(environ={**environ, "TINKER_API_KEY": "tml-set"}, files=[]).api_key == "tml-set"
    assert Config(environ=environ, files=[], api_key="tml-given").api_key == "tml-given"
    assert not runs.exists()
    store = {"default": "a", "keys": {"a": {"key": "tml-stored"}}}
    (tmp_path / ".tinker").mkdir()
    (tmp_path / ".tinker/credentials.json").write_text(json.dumps(store))
    assert Config(environ=environ, files=[]).api_key == KEY
    assert Config(environ={"HOME": str(tmp_path)}, files=[]).api_key == "tml-stored"


def test_asking_whether_there_is_a_key_runs_no_command(script, monkeypatch, tmp_path):
    command, runs = script("raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("TINKEX_API_KEY", "TINKER_API_KEY", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert not auth.tinker_has_credentials()
    monkeypatch.setenv("TINKER_CREDENTIAL_CMD", command)
    assert auth.tinker_has_credentials()
    assert auth.get_tinker_token() is None
    assert not runs.exists()


ACCESS = {"CLOUDFLARE_ACCESS_CLIENT_ID": "me", "CLOUDFLARE_ACCESS_CLIENT_SECRET": CANARY}


def test_access_headers_are_sent_and_the_secret_is_masked():
    config = Config(environ=ACCESS, files=[])
    expected = {"CF-Access-Client-Id": "me", "CF-Access-Client-Secret": CANARY}
    assert config.default_headers == expected
    assert config.origin("default_headers") == "environment CLOUDFLARE_ACCESS_CLIENT_ID"
    assert CANARY not in repr(config) + json.dumps(config.as_dict())
    assert "me" in json.dumps(config.as_dict())


def test_given_headers_come_before_those_of_the_environment():
    given = {"cf-access-client-id": "other", "X-Tenant": "t"}
    config = Config(environ=ACCESS, files=[], default_headers=given)
    assert config.default_headers == {**given, "CF-Access-Client-Secret": CANARY}
    assert config.origin("default_headers") == "argument"


def test_a_bad_access_secret_is_refused_without_being_shown():
    with pytest.raises(ConfigError, match="CLOUDFLARE_ACCESS_CLIENT_SECRET") as caught:
        Config(environ={"CLOUDFLARE_ACCESS_CLIENT_SECRET": CANARY + "\n"}, files=[])
    assert CANARY not in str(caught.value)
