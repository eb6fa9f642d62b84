"""Stored credentials: which entry is used for which server, and files that are refused."""

import json
import os

import pytest

from tinkex import credentials
from tinkex.config import DEFAULT_BASE_URL, Config, credentials_path
from tinkex.errors import ConfigError

LOCAL = "http://127.0.0.1:8000"
OTHER = "https://tinkex.example.org"


@pytest.fixture
def home(tmp_path, monkeypatch):
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return tmp_path


@pytest.fixture
def stored(home):
    """A file with keys of two servers, of which the local one is the default."""
    path = home / ".config/tinkex/credentials.json"
    store = credentials.Credentials().with_key(OTHER, "tml-other").with_key(LOCAL, "tml-local")
    credentials.save(path, store)
    return path


def environ(home, **more):
    return {"HOME": str(home), **more}


def test_server_and_key_come_from_the_last_login(home, stored):
    config = Config(environ=environ(home))
    assert (config.base_url, config.api_key) == (LOCAL, "tml-local")
    assert config.origin("base_url") == config.origin("api_key") == f"file {stored}"


def test_each_server_has_its_own_key(home, stored):
    assert Config(base_url=f"{OTHER}/", environ=environ(home)).api_key == "tml-other"
    named = environ(home, TINKER_BASE_URL="HTTPS://tinkex.example.org:443")
    assert Config(environ=named).api_key == "tml-other"
    assert Config(base_url="http://127.0.0.1:9", environ=environ(home)).api_key is None


def test_a_key_given_otherwise_never_goes_to_the_stored_server(home, stored):
    for config in (
        Config(api_key="tml-hosted", environ=environ(home)),
        Config(environ=environ(home, TINKER_API_KEY="tml-hosted")),
    ):
        assert (config.base_url, config.api_key) == (DEFAULT_BASE_URL, "tml-hosted")


def test_settings_files_win_over_credentials(home, stored):
    toml = home / ".config/tinkex/config.toml"
    toml.write_text(f'[client]\nbase_url = "{OTHER}"\n')
    assert Config(environ=environ(home)).api_key == "tml-other"
    toml.write_text('[client]\napi_key = "tml-file"\n')
    assert Config(environ=environ(home)).api_key == "tml-file"


def test_it_wins_over_the_official_store(home, stored):
    official = home / ".tinker/credentials.json"
    official.parent.mkdir()
    official.write_text(json.dumps({"default": "7", "keys": {"7": {"key": "tml-official"}}}))
    assert Config(environ=environ(home)).api_key == "tml-local"
    stored.unlink()
    assert Config(environ=environ(home)).api_key == "tml-official"


def test_the_file_can_be_elsewhere(home, stored):
    elsewhere = home / "elsewhere.json"
    stored.rename(elsewhere)
    assert Config(environ=environ(home)).api_key is None
    named = environ(home, TINKEX_CREDENTIALS_FILE=str(elsewhere))
    assert Config(environ=named).api_key == "tml-local"
    assert Config(credentials_file=str(elsewhere), environ={}).api_key == "tml-local"
    xdg = environ(home, XDG_CONFIG_HOME=str(home / "xdg"))
    assert credentials_path(Config(environ=xdg), xdg) == home / "xdg/tinkex/credentials.json"


def test_nothing_is_read_if_a_key_is_given(home, stored):
    stored.chmod(0o644)
    assert Config(api_key="tml-given", environ=environ(home)).api_key == "tml-given"
    assert Config(environ={}).replace(credentials_file=str(stored)).api_key is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o620])
def test_a_file_open_to_others_is_refused_with_the_command(home, stored, mode):
    stored.chmod(mode)
    with pytest.raises(ConfigError) as caught:
        Config(environ=environ(home))
    assert f"chmod 600 {stored}" in caught.value.hint
    assert "tml-local" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version": 2, "servers": {}}',
        '{"version": 1, "servers": {"x": 1}}',
        "\x00",
    ],
)
def test_a_broken_file_is_named(home, stored, text):
    stored.write_text(text)
    with pytest.raises(ConfigError) as caught:
        Config(environ=environ(home))
    assert str(stored) in caught.value.message
    assert "tinkex auth login" in caught.value.hint


def test_it_is_written_for_its_user_alone(home, monkeypatch):
    path = home / "new/folder/credentials.json"
    old = os.umask(0)
    try:
        credentials.save(path, credentials.Credentials().with_key(LOCAL, "tml-a"))
        credentials.save(path, credentials.Credentials().with_key(LOCAL, "tml-b"))
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [each.name for each in path.parent.iterdir()] == ["credentials.json"]
    read = credentials.read(path)
    assert read is not None
    assert "tml-b" not in repr(read)
    assert read.keys[LOCAL].reveal() == "tml-b"


def test_a_link_is_followed_to_the_file_it_names(home, stored):
    """Many keep their settings in a repository and link to them."""
    target = home / "dotfiles.json"
    stored.rename(target)
    stored.symlink_to(target)
    credentials.save(stored, credentials.Credentials().with_key(LOCAL, "tml-new"))
    assert stored.is_symlink()
    assert Config(environ=environ(home)).api_key == "tml-new"


def test_forgetting_the_default_leaves_no_default(home, stored):
    left = credentials.read(stored).without(LOCAL)
    credentials.save(stored, left)
    config = Config(environ=environ(home))
    assert (config.base_url, config.api_key) == (DEFAULT_BASE_URL, None)
    assert Config(base_url=OTHER, environ=environ(home)).api_key == "tml-other"


def test_a_linked_file_is_emptied_where_it_lies_and_the_link_stays(home, stored):
    target = home / "elsewhere" / "keys.json"
    target.parent.mkdir()
    stored.rename(target)
    stored.symlink_to(target)
    credentials.update(stored, lambda _: credentials.Credentials())
    assert not target.exists()
    assert stored.is_symlink(), "the next login writes to the same place"
    credentials.update(stored, lambda store: store.with_key(LOCAL, "tml-new"))
    assert "tml-new" in target.read_text()


def test_changes_at_the_same_time_lose_no_key(home, stored):
    from concurrent.futures import ThreadPoolExecutor

    def add(number):
        credentials.update(
            stored, lambda store: store.with_key(f"http://127.0.0.1:{number}", "tml-x")
        )

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(1, 65)))
    assert len(credentials.read(stored).keys) == 64 + 2
