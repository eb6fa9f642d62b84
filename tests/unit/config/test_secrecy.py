"""The API key is in the request and nowhere else."""

import dataclasses
import json
import logging
import pickle
import pprint
import traceback

import pytest

from tinkex.config import Config
from tinkex.errors import ConfigError
from tinkex.telemetry import Bus

KEY = "tml-Q7x9dKpW3mNbV5cZ8sL2a1b2"
OTHER = "not-a-known-prefix-Q7x9dKpW3mNb"
HEADER = "hunter2-in-a-header"


def everything_shown(config):
    return [
        repr(config),
        str(config),
        f"{config}",
        f"{config!r:>500}",
        pprint.pformat(config),
        json.dumps(config.as_dict()),
        repr([config]),
        repr(config.tenant_key),
        repr(Config.fields()),
        repr(config.__getstate__()[1]),
    ]


@pytest.mark.parametrize("key", [KEY, OTHER])
@pytest.mark.parametrize("through", ["argument", "environment", "file"])
def test_nothing_a_config_shows_contains_the_key(key, through, tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text(f'[client]\napi_key = "{key}"\n')
    config = {
        "argument": lambda: Config(api_key=key, environ={}, files=[]),
        "environment": lambda: Config(environ={"TINKER_API_KEY": key}, files=[]),
        "file": lambda: Config(environ={}, files=[path]),
    }[through]()
    assert config.api_key == key
    for shown in everything_shown(config):
        assert key not in shown
        assert key[4:20] not in shown
    assert config.as_dict()["api_key"].endswith(key[-4:])


def test_repr_says_what_differs_from_the_defaults():
    config = Config(api_key=KEY, timeout_s=5, environ={}, files=[])
    assert repr(config) == "Config(api_key='tml-…a1b2', timeout_s=5.0)"


def test_secret_headers_are_masked():
    headers = {"Authorization": f"Bearer {HEADER}", "CF-Access-Client-Secret": HEADER, "X-A": "b"}
    config = Config(default_headers=headers, environ={}, files=[])
    assert config.default_headers == headers
    assert all(HEADER not in shown for shown in everything_shown(config))
    assert config.as_dict()["default_headers"]["X-A"] == "b"


PROXY = "http://user:hunter2@proxy.example:3128"


@pytest.mark.parametrize("through", ["argument", "environment", "file"])
def test_the_password_of_a_proxy_is_taken_and_masked(through, tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text(f'[client]\nproxy = "{PROXY}/"\n')
    config = {
        "argument": lambda: Config(proxy=PROXY, environ={}, files=[]),
        "environment": lambda: Config(environ={"TINKEX_PROXY": PROXY}, files=[]),
        "file": lambda: Config(environ={}, files=[path]),
    }[through]()
    assert config.proxy == PROXY
    assert config.as_dict()["proxy"] == "http://…@proxy.example:3128"
    assert all("hunter2" not in shown for shown in everything_shown(config))
    assert "hunter2" not in repr(config.__getstate__())
    assert pickle.loads(pickle.dumps(config)).proxy == PROXY
    assert config.replace(timeout_s=5).proxy == PROXY


@pytest.mark.parametrize(
    "proxy", ["ftp://user:hunter2@host:1", "user:hunter2@host", "http://user:hunter2@", "http://"]
)
def test_a_proxy_that_is_none_is_refused_by_its_own_name(proxy):
    with pytest.raises(ConfigError, match=r"^proxy=") as caught:
        Config(proxy=proxy, environ={}, files=[])
    assert "base_url" not in str(caught.value)


def test_a_config_offers_nothing_to_generic_serialisers():
    config = Config(api_key=KEY, environ={}, files=[])
    with pytest.raises(TypeError):
        dataclasses.asdict(config)
    with pytest.raises(TypeError):
        json.dumps(config)
    with pytest.raises(TypeError):
        vars(config)


@pytest.mark.parametrize(
    "settings",
    [
        {"api_key": KEY + "\n"},
        {"api_key": KEY, "timeout_s": -1},
        {"api_key": KEY, "base_url": f"https://{KEY}@host"},
        {"default_headers": {"X-API-Key": KEY + "\n"}},
        {"base_url": f"https://host/?key={KEY}"},
        {"environ": {"TINKER_API_KEY": KEY + " x"}},
        {"environ": {"TINKER_API_KEY": KEY, "TINKEX_TIMEOUT_S": "x"}},
    ],
)
def test_errors_and_tracebacks_with_locals_show_no_key(settings):
    arguments = {"environ": {}, "files": [], **settings}
    with pytest.raises(ConfigError) as caught:
        Config(**arguments)
    shown = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    ours = [frame for frame in shown.stack if "/tinkex/config/" in frame.filename]
    assert ours
    assert KEY not in repr([frame.locals for frame in ours])
    assert KEY not in str(caught.value)
    assert caught.value.__context__ is None


def test_file_that_cannot_be_parsed_is_not_quoted_with_its_key(tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text(f"[client]\napi_key = {KEY}\n")
    with pytest.raises(ConfigError) as caught:
        Config(environ={}, files=[path])
    assert KEY not in str(caught.value)


def test_logs_and_events_about_a_config_show_no_key(caplog):
    config, bus, seen = Config(api_key=OTHER, environ={}, files=[]), Bus(), []
    bus.attach("h", "*", lambda *event: seen.append(repr(event)))
    bus.execute(
        "tinkex.test", {}, {"config": config, "settings": config.as_dict(), "api_key": OTHER}
    )
    with caplog.at_level(logging.INFO):
        logging.getLogger("tests").info("using %s and %r", config, config)
    assert OTHER not in caplog.text + "".join(seen)
