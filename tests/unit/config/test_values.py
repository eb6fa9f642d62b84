"""Which values are accepted, and that a Config is a value itself."""

import copy
import math
import pickle
from pathlib import Path

import pytest

from tinkex.config import Config, normalize_base_url, process_settings
from tinkex.errors import ConfigError, ValidationError


def make(**settings):
    return Config(**settings, environ={}, files=[])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timeout_s", 0),
        ("timeout_s", -1),
        ("timeout_s", math.nan),
        ("timeout_s", math.inf),
        ("timeout_s", 10**400),
        ("timeout_s", "soon"),
        ("timeout_s", True),
        ("timeout_s", []),
        ("max_samples_in_flight", -1),
        ("max_samples_in_flight", 1.5),
        ("max_samples_in_flight", "many"),
        ("max_samples_in_flight", 0),
        ("telemetry_to_server", "perhaps"),
        ("telemetry_to_server", 1),
        ("log_level", "loud"),
        ("tags", [1]),
        ("tags", 3),
        ("user_metadata", {"a": 1}),
        ("user_metadata", "not json"),
        ("user_metadata", [("a", "b")]),
        ("default_headers", {"X-A": "line\nbreak"}),
        ("project_id", "  "),
        ("base_url", ""),
        ("base_url", 5),
    ],
)
def test_unusable_values_are_refused_by_name_origin_and_advice(name, value):
    with pytest.raises(ConfigError) as caught:
        make(**{name: value})
    assert name in caught.value.message
    assert "(from argument)" in caught.value.message
    assert caught.value.hint
    assert isinstance(caught.value, ValidationError)
    assert isinstance(caught.value, ValueError)


def test_refused_variable_is_named():
    with pytest.raises(ConfigError, match=r"timeout_s='soon' \(from environment TINKEX_TIME"):
        Config(environ={"TINKEX_TIMEOUT_S": "soon"}, files=[])


@pytest.mark.parametrize("key", ["tml-x", "eyJx", "any-other-key", "x" * 5000])
def test_any_sendable_key_is_accepted(key):
    assert make(api_key=key).require_api_key() == key


@pytest.mark.parametrize("key", ["", " tml-x", "tml-x\n", "tml x", "tml-é", "tml-\x00", 5])
def test_keys_that_cannot_travel_in_a_header_are_refused(key):
    with pytest.raises(ConfigError, match="api_key") as caught:
        make(api_key=key)
    assert "tml-" in caught.value.hint
    assert repr(key) not in str(caught.value)


def test_missing_key_matters_only_to_who_needs_it():
    config = make()
    assert config.api_key is None
    with pytest.raises(ConfigError, match="No API key") as caught:
        config.require_api_key()
    assert caught.value.code == "missing-api-key"
    assert "TINKER_API_KEY" in caught.value.hint


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("https://api.example.com", "https://api.example.com"),
        ("HTTPS://API.Example.com/", "https://api.example.com"),
        ("https://api.example.com:443/", "https://api.example.com"),
        ("http://api.example.com:80", "http://api.example.com"),
        ("https://api.example.com:80", "https://api.example.com:80"),
        ("http://localhost:8000//", "http://localhost:8000"),
        ("https://h/Prefix/Path/", "https://h/Prefix/Path"),
        ("http://[::1]:80/x", "http://[::1]/x"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("  https://h.  ", "https://h"),
        ("https://h:/", "https://h"),
    ],
)
def test_equal_servers_have_one_spelling(url, normal):
    assert normalize_base_url(url) == normal
    assert normalize_base_url(normal) == normal
    assert make(base_url=url).normalized_base_url == normal


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("example.com", "begin with http"),
        ("ftp://example.com", "begin with http"),
        ("https://", "no host"),
        ("https:///path", "no host"),
        ("https://user:hunter2@example.com", "user name"),
        ("https://example.com/?token=hunter2", "query"),
        ("https://example.com/#hunter2", "fragment"),
        ("https://example.com:99999", "not a URL"),
        ("https://[::1", "not a URL"),
        ("https://exa mple.com", "spaces"),
    ],
)
def test_urls_that_are_no_base_are_refused(url, problem):
    with pytest.raises(ConfigError, match=problem) as caught:
        make(base_url=url)
    assert "hunter2" not in str(caught.value)
    assert "(from argument)" in str(caught.value)


def test_trailing_slash_of_the_base_url_is_dropped_but_its_case_kept():
    assert make(base_url="https://h/Path//").base_url == "https://h/Path"


def test_tenant_key_tells_urls_and_keys_apart_and_never_holds_the_key():
    one = make(base_url="https://H:443/", api_key="tml-a")
    same = make(base_url="https://h", api_key="tml-a", timeout_s=1)
    assert one.tenant_key == same.tenant_key
    assert make(base_url="https://h", api_key="tml-b").tenant_key != one.tenant_key
    assert make(base_url="https://i", api_key="tml-a").tenant_key != one.tenant_key
    assert make(base_url="https://h").tenant_key == ("https://h", "")
    url, digest = one.tenant_key
    assert url == "https://h"
    assert len(digest) == 64
    assert "tml-a" not in repr(one.tenant_key)


def test_config_is_frozen():
    config = make(user_metadata={"a": "b"})
    with pytest.raises(AttributeError, match=r"replace\(timeout_s"):
        config.timeout_s = 1
    with pytest.raises(AttributeError):
        config.anything = 1
    config.user_metadata["a"] = "changed"
    assert config.user_metadata == {"a": "b"}


def test_what_was_given_can_change_afterwards_without_harm():
    mine = {"a": "b"}
    config = make(user_metadata=mine)
    mine["a"] = "changed"
    assert config.user_metadata == {"a": "b"}


def test_equality_and_hash_are_over_settings_and_key():
    one = make(api_key="tml-a", user_metadata={"a": "1", "b": "2"})
    same = make(api_key="tml-a", user_metadata={"b": "2", "a": "1"})
    assert one == same
    assert hash(one) == hash(same)
    assert one != make(api_key="tml-b", user_metadata={"a": "1", "b": "2"})
    assert one != one.replace(timeout_s=1)
    assert one != "something else"
    assert make(timeout_s=60) == make(), "where a value came from does not matter"


def test_replace_changes_only_what_it_is_given():
    config = Config(environ={"TINKER_API_KEY": "tml-a"}, files=[])
    other = config.replace(timeout_s=5, tags=["x"])
    assert (other.timeout_s, other.tags, other.api_key) == (5.0, ("x",), "tml-a")
    assert other.origin("timeout_s") == "argument"
    assert other.origin("api_key") == "environment TINKER_API_KEY"
    assert (config.timeout_s, config.tags) == (60.0, ())
    assert config.replace(api_key=None).api_key is None
    with pytest.raises(ConfigError):
        config.replace(timeout_s=-1)


def test_two_configs_live_side_by_side():
    a, b = make(api_key="tml-a", timeout_s=1), make(api_key="tml-b", timeout_s=2)
    assert (a.api_key, a.timeout_s, b.api_key, b.timeout_s) == ("tml-a", 1, "tml-b", 2)


@pytest.mark.parametrize(
    "clone", [copy.copy, copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))]
)
def test_copies_are_equal_and_keep_key_and_origins(clone):
    config = make(api_key="tml-a", tags=["x"])
    other = clone(config)
    assert other == config
    assert other.require_api_key() == "tml-a"
    assert other.origin("tags") == "argument"


@pytest.mark.parametrize(
    ("environ", "is_debug", "has_color"),
    [
        ({}, False, True),
        ({"TINKEX_DEBUG": "1"}, True, True),
        ({"TINKEX_DEBUG": "0"}, False, True),
        ({"NO_COLOR": "1"}, False, False),
        ({"NO_COLOR": ""}, False, True),
        ({"TERM": "dumb"}, False, False),
    ],
)
def test_settings_of_the_terminal(environ, is_debug, has_color):
    settings = process_settings(environ)
    assert (settings.is_debug, settings.has_color) == (is_debug, has_color)


@pytest.mark.parametrize(
    ("environ", "cache"),
    [
        ({"HOME": "/h"}, "/h/.cache/huggingface/hub"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({"HOME": "/h", "HF_HOME": "/hf"}, "/hf/hub"),
        ({"HF_HOME": "/hf", "HF_HUB_CACHE": "/cache"}, "/cache"),
        ({"HUGGINGFACE_HUB_CACHE": "/old"}, "/old"),
    ],
)
def test_place_of_the_hub_cache(environ, cache):
    assert process_settings(environ).hub_cache == Path(cache)
    assert not process_settings(environ).is_hub_offline
    assert process_settings({**environ, "HF_HUB_OFFLINE": "1"}).is_hub_offline
