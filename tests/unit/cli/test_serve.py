"""Flags and manners of `serve`, `keys` and `models`; what they start is tested with the server."""

import subprocess
import sys

import pytest

from tinkex.cli.data_dir import default_data_dir
from tinkex.cli.installing import install_command


@pytest.fixture
def started(monkeypatch):
    """The configs of servers that would have been started."""
    from tinkex.server.process import Started

    configs = []

    class Process:
        def __init__(self, config, *, worker):
            assert (worker is None) is (config.device == "null"), "torch is imported meanwhile"
            configs.append(config)

        def run(self, *, on_listening, on_ready):
            on_listening(Started(url="http://127.0.0.1:9"))
            on_ready(Started(url="http://127.0.0.1:9", new_key="tml-new"))

    monkeypatch.setattr("tinkex.server.process.ServerProcess", Process)
    return configs


def test_serve_says_where_it_is_and_how_to_use_it(run, started):
    ran = run("serve", "--model", "tiny=/m", "--data-dir", "d")
    assert ran.code == 0
    assert "Listening on http://127.0.0.1:9\n" in ran.out
    assert "export TINKER_API_KEY=tml-new" in ran.out


def test_flags_reach_the_config(run, started, tmp_path):
    flags = "--host 0.0.0.0 --port 0 --device null --num-threads 3 --deterministic --data-dir d"
    models = "--model", "a=/x", "--model", "b"
    assert run("serve", *flags.split(), "--no-kernels", *models).code == 0
    (config,) = started
    assert (config.host, config.port, config.device) == ("0.0.0.0", 0, "null")
    assert (config.num_threads, config.is_deterministic) == (3, True)
    assert not config.has_kernels
    assert [(each.name, each.source) for each in config.models] == [("a", "/x"), ("b", "b")]


@pytest.mark.parametrize("second", ["tiny=/b", "tiny=/a", "tiny"])
def test_name_of_two_models_is_refused(run, started, second):
    ran = run("serve", "--model", "tiny=/a", "--model", second, "--data-dir", "d")
    assert (ran.code, "the name 'tiny' is given twice" in ran.err) == (2, True)
    assert started == []


def test_every_number_has_a_flag_and_a_variable(run, started, monkeypatch):
    from tinkex.server.settings import settings

    text = run("serve", "--help").out
    for setting in settings():
        assert setting.flag in text
    chosen = settings()[0]
    monkeypatch.setenv(chosen.variable, "7")
    assert run("serve", "--model", "m=/m", "--data-dir", "d").code == 0


@pytest.mark.parametrize("number", ["nan", "inf"])
def test_seconds_are_finite(run, started, number):
    ran = run("serve", "--model", "m=/m", "--data-dir", "d", "--drain-s", number)
    assert (ran.code, f"{number} is not a finite number" in ran.err) == (2, True)
    assert started == []


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [(["--prot", "1"], "--port"), (["--modle", "x"], "--model")],
)
def test_wrong_flags_are_suggested(run, arguments, suggestion):
    ran = run("serve", *arguments)
    assert ran.code == 2
    assert f"Did you mean '{suggestion}'?" in ran.err or f"'{suggestion}'" in ran.err


def test_missing_server_packages_say_what_to_install(run, monkeypatch):
    def missing(*_):
        raise ModuleNotFoundError("No module named 'starlette'", name="starlette")

    monkeypatch.setattr("tinkex.cli.lazy.import_module", missing)
    ran = run("serve")
    assert ran.code == 1
    assert "starlette is not installed" in ran.err
    assert f"Run: {install_command('server')}" in ran.err


def test_keys_are_made_listed_and_revoked(run):
    made = run("keys", "create", "--name", "laptop", "--data-dir", "d", "--json").json
    assert made["key"].startswith("tml-")
    listed = run("keys", "list", "--data-dir", "d", "--json").json["keys"]
    assert [(each["name"], each["revoked"]) for each in listed] == [("laptop", None)]
    assert made["key"] not in str(listed)
    assert run("keys", "revoke", str(made["key_id"]), "--data-dir", "d").code == 0
    assert run("keys", "list", "--data-dir", "d", "--json").json["keys"][0]["revoked"]
    plain = run("keys", "create", "--data-dir", "d")
    assert plain.out.startswith("tml-")
    assert len(plain.out.splitlines()) == 1


def test_unknown_key_is_not_found(run):
    run("keys", "create", "--data-dir", "d")
    ran = run("keys", "revoke", "99", "--data-dir", "d")
    assert (ran.code, "tinkex keys list" in ran.err) == (4, True)


def test_models_of_an_empty_folder(run):
    ran = run("models", "list", "--data-dir", "d")
    assert (ran.code, ran.out) == (0, "")
    assert "tinkex models pull" in ran.err
    assert run("models", "list", "--data-dir", "d", "--json").json == {"models": []}
    assert run("models", "rm", "nope", "--data-dir", "d").code == 4


@pytest.mark.parametrize("is_json", [False, True])
def test_models_of_a_server(cli, server, is_json):
    server.service.models = ["a/b", "c"]
    ran = cli("models", "list", "--remote", *(["--json"] if is_json else []))
    assert ran.code == 0, ran.err
    if is_json:
        assert [each["model_name"] for each in ran.json["models"]] == ["a/b", "c"]
    else:
        assert ran.out.splitlines()[1].split() == ["a/b", "4096", "True", "True"]
    server.service.models = []
    assert cli("models", "list", "--remote").out == ""


@pytest.mark.parametrize("is_json", [False, True])
def test_model_with_two_names_is_listed_once(cli, server, is_json):
    server.service.models = ["a", "org/a", "b"]
    server.service.aliases = {"org/a": "a"}
    ran = cli("models", "list", "--remote", *(["--json"] if is_json else []))
    assert ran.code == 0, ran.err
    if is_json:
        listed = {each["model_name"]: each["aliases"] for each in ran.json["models"]}
        assert listed == {"a": ["org/a"], "b": []}
    else:
        header, first, second = ran.out.splitlines()
        assert header.endswith("also called")
        assert (first.split()[0], first.split()[-1], second.split()[0]) == ("a", "org/a", "b")
    models = cli("doctor", "--json").json["checks"]
    assert "a (also org/a), b" in [each["detail"] for each in models]


def test_greeting_lists_a_model_with_two_names_once(run, started):
    ran = run("serve", "--model", "a=/m", "--model", "org/a=/m", "--data-dir", "d")
    assert "Models: a (also org/a)\n" in ran.out
    assert "base_model='a'" in ran.out


def test_greeting_knows_a_folder_by_any_spelling(run, started, tmp_path):
    folder, link = tmp_path / "m", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    spellings = [f"a={folder}", f"b={link}", f"c={folder}/../m/"]
    given = [each for text in spellings for each in ("--model", text)]
    ran = run("serve", *given, "--data-dir", "d")
    assert "Models: a (also b, c)\n" in ran.out


def test_data_folder_has_a_place_of_its_own():
    assert default_data_dir().name == "tinkex"


def test_looking_at_keys_models_and_flags_loads_no_server(monkeypatch):
    code = (
        "import sys; from tinkex.cli.main import run; "
        "run(['keys', '--help']); run(['models', 'list', '--help']); run(['serve', '--help']); "
        "print({'sqlalchemy', 'numpy', 'platformdirs'} & set(sys.modules), file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.stderr == "set()\n"


def test_data_folder_is_found_without_the_servers_packages(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_data_dir() == tmp_path / ".local/share/tinkex"
