"""Which source of a setting wins, and what is said about it."""

import inspect
import json

import pytest

from tinkex.config import DEFAULT_BASE_URL, Config
from tinkex.errors import ConfigError


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty home, an empty working directory, and no variables that matter."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return tmp_path


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def environ(home, **more):
    return {"HOME": str(home), **more}


def test_defaults_hold_unless_something_is_set(home):
    config = Config(environ={})
    assert config.base_url == DEFAULT_BASE_URL
    assert config.api_key is None
    assert (config.timeout_s, config.connect_timeout_s, config.poll_timeout_s) == (60, 5, 45)
    assert (config.retry_budget_s, config.retry_base_s, config.retry_max_s) == (300, 0.5, 10)
    assert (config.heartbeat_interval_s, config.max_samples_in_flight) == (10, 2000)
    assert config.telemetry_to_server is False
    assert config.tags == ()
    assert {config.origin(each.name) for each in Config.fields()} == {"default"}


def test_each_source_beats_the_next(home):
    user = write(
        home / ".config/tinkex/config.toml", "[client]\nmax_samples_in_flight = 1\ntimeout_s = 11\n"
    )
    config = Config(environ=environ(home))
    assert (config.max_samples_in_flight, config.origin("max_samples_in_flight")) == (
        1,
        f"file {user}",
    )

    project = write(home / "work/tinkex.toml", "[client]\nmax_samples_in_flight = 2\n")
    config = Config(environ=environ(home))
    assert (config.max_samples_in_flight, config.origin("max_samples_in_flight")) == (
        2,
        f"file {project}",
    )
    assert (config.timeout_s, config.origin("timeout_s")) == (11.0, f"file {user}")

    variables = environ(home, TINKEX_MAX_SAMPLES_IN_FLIGHT="3")
    config = Config(environ=variables)
    assert config.max_samples_in_flight == 3
    assert config.origin("max_samples_in_flight") == "environment TINKEX_MAX_SAMPLES_IN_FLIGHT"

    config = Config(max_samples_in_flight=4, environ=variables)
    assert (config.max_samples_in_flight, config.origin("max_samples_in_flight")) == (4, "argument")


@pytest.mark.parametrize(
    ("variable", "name", "text", "value"),
    [
        ("TINKER_API_KEY", "api_key", "tml-abc", "tml-abc"),
        ("TINKER_BASE_URL", "base_url", "http://localhost:8000/", "http://localhost:8000"),
        ("TINKER_PROJECT_ID", "project_id", "p-1", "p-1"),
        ("TINKER_TAGS", "tags", "a, b,,a", ("a", "b")),
        ("TINKER_LOG", "log_level", "DEBUG", "debug"),
    ],
)
def test_official_variables_are_understood_and_ours_go_first(home, variable, name, text, value):
    config = Config(environ={variable: text})
    assert getattr(config, name) == value
    assert config.origin(name) == f"environment {variable}"
    ours = f"TINKEX_{name.upper()}"
    assert Config(environ={variable: text, ours: text}).origin(name) == f"environment {ours}"


def test_every_setting_has_a_variable_and_a_constructor_argument(home):
    arguments = inspect.signature(Config).parameters
    for field in Config.fields():
        assert f"TINKEX_{field.name.upper()}" in field.env
        assert field.name in arguments
        assert field.doc.endswith(".")
        assert field.type in ("str", "float", "int", "bool", "list[str]", "dict[str, str]")
    extra = set(arguments) - {field.name for field in Config.fields()}
    assert extra == {"environ", "files"}


def test_values_of_every_kind_come_from_the_environment(home):
    config = Config(
        environ={
            "TINKEX_TIMEOUT_S": "2.5",
            "TINKEX_MAX_SAMPLES_IN_FLIGHT": "7",
            "TINKEX_TELEMETRY_TO_SERVER": "yes",
            "TINKEX_USER_METADATA": '{"run": "a"}',
            "TINKEX_DEFAULT_HEADERS": '{"X-Team": "blue"}',
        }
    )
    assert (config.timeout_s, config.max_samples_in_flight) == (2.5, 7)
    assert config.telemetry_to_server is True
    assert config.user_metadata == {"run": "a"}
    assert config.default_headers == {"X-Team": "blue"}


def test_empty_variables_count_as_unset(home):
    config = Config(
        environ={"TINKER_API_KEY": "", "TINKER_BASE_URL": "", "TINKEX_MAX_SAMPLES_IN_FLIGHT": ""}
    )
    assert config.api_key is None
    assert config.base_url == DEFAULT_BASE_URL
    assert config.max_samples_in_flight == 2000


def test_process_environment_is_read_when_none_is_given(home, monkeypatch):
    monkeypatch.setenv("TINKER_API_KEY", "tml-from-env")
    monkeypatch.setenv("HOME", str(home))
    assert Config().api_key == "tml-from-env"
    assert Config(api_key="tml-x").api_key == "tml-x"


def test_xdg_config_home_is_honoured(home):
    path = write(home / "xdg/tinkex/config.toml", '[client]\ntags = ["x"]\n')
    write(home / ".config/tinkex/config.toml", '[client]\ntags = ["y"]\n')
    config = Config(environ=environ(home, XDG_CONFIG_HOME=str(home / "xdg")))
    assert (config.tags, config.origin("tags")) == (("x",), f"file {path}")


def test_given_files_stand_in_for_the_usual_ones(home):
    write(home / "work/tinkex.toml", "[client]\nmax_samples_in_flight = 2\n")
    mine = write(home / "mine.toml", "[client]\nmax_samples_in_flight = 5\n[server]\nport = 1\n")
    assert Config(files=[mine], environ=environ(home)).max_samples_in_flight == 5
    assert Config(files=[], environ=environ(home)).max_samples_in_flight == 2000
    with pytest.raises(ConfigError, match="cannot be read"):
        Config(files=[home / "absent.toml"], environ={})


def test_misspelt_setting_in_a_file_is_refused_with_a_suggestion(home):
    path = write(home / "work/tinkex.toml", "[client]\nmax_samples_in_fligth = 2\n")
    with pytest.raises(ConfigError, match="max_samples_in_fligth") as caught:
        Config(environ={})
    assert str(path) in str(caught.value)
    assert "Did you mean 'max_samples_in_flight'?" in caught.value.hint


@pytest.mark.parametrize("text", ["[client\n", "client = 3\n", "\x00"])
def test_broken_file_is_named(home, text):
    path = write(home / "work/tinkex.toml", text)
    with pytest.raises(ConfigError) as caught:
        Config(environ={})
    assert str(path) in caught.value.message
    assert caught.value.hint


def store(key="tml-stored", default="7"):
    return json.dumps(
        {"version": 1, "default": default, "keys": {"7": {"type": "manual", "key": key}}}
    )


def test_stored_credential_is_the_last_resort(home):
    path = write(home / ".tinker/credentials.json", store())
    config = Config(environ=environ(home))
    assert (config.api_key, config.origin("api_key")) == ("tml-stored", f"file {path}")
    write(home / ".config/tinkex/config.toml", '[client]\napi_key = "tml-file"\n')
    assert Config(environ=environ(home)).api_key == "tml-file"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", store(default="8"), store(key=None), store(key="")]
)
def test_unusable_credential_store_is_as_good_as_none(home, text):
    write(home / ".tinker/credentials.json", text)
    assert Config(environ=environ(home)).api_key is None


def test_unknown_names_are_distinguished_from_known_ones(home):
    config = Config(environ={})
    with pytest.raises(ConfigError, match="'base_ulr' is not a setting") as caught:
        config.origin("base_ulr")
    assert "base_url" in caught.value.hint
    with pytest.raises(ConfigError, match="is not a setting"):
        config.replace(nonsense=1)
    with pytest.raises(TypeError):
        Config(nonsense=1)
