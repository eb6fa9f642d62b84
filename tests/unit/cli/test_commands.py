"""`version` and `config show`, and the helpers they share."""

import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

import tinkex
from tinkex.cli.lazy import Lazy, LazyGroup
from tinkex.cli.output import print_table, printable, say
from tinkex.config import Config

KEY = "tml-Q7x9dKpW3mNbV5cZ8sL2a1b2"
VERSION = importlib.metadata.version("tinkex")


class FakeDistribution:
    version = "9.8.7"
    requires = ["click>=8", "absent-thing", 'numpy ; extra == "numpy"', "tinkex[torch]"]


@pytest.fixture
def no_commit(monkeypatch):
    """A package of an unknown commit, as in a folder that was copied."""
    monkeypatch.setattr("tinkex.commit.commit_of_package", lambda package: None)


def test_version_is_the_installed_one(run, no_commit):
    assert run("version").out == f"tinkex {VERSION}\n"
    assert run("--version").out == f"tinkex {VERSION}\n"
    assert run("version", "--json").json == {"version": VERSION, "commit": None}


def test_the_commit_of_the_package_is_shown(run, monkeypatch):
    calls = []

    def commit_of_package(package):
        calls.append(package)
        return "abcdef0123456789" + 24 * "0"

    monkeypatch.setattr("tinkex.commit.commit_of_package", commit_of_package)
    assert run("version", "--json").json["commit"].startswith("abcdef0123456789")
    assert run("version").out == f"tinkex {VERSION} (abcdef012345)\n"
    assert calls[0] == Path(tinkex.__file__).parent


@pytest.mark.parametrize(
    ("direct_url", "commit"),
    [
        (
            json.dumps({"url": "u", "vcs_info": {"vcs": "git", "commit_id": "abcdef0123456789"}}),
            True,
        ),
        (json.dumps({"url": "file:///x", "dir_info": {"editable": True}}), False),
        (json.dumps({"vcs_info": {"commit_id": 7}}), False),
        (json.dumps({"vcs_info": "x"}), False),
        ("not json but vcs_info", False),
        ("not json", False),
        ("[]", False),
        (None, False),
    ],
)
def test_an_installer_that_knows_the_commit_is_believed(
    run, no_commit, monkeypatch, tmp_path, direct_url, commit
):
    folder = tmp_path / "site" / "tinkex-9.8.7.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.4\nName: tinkex\nVersion: 9.8.7\n\n")
    if direct_url is not None:
        (folder / "direct_url.json").write_text(direct_url)
    monkeypatch.setattr("sys.path", ["", str(tmp_path / "nowhere"), str(folder.parent)])
    document = run("version", "--json").json
    assert document == {"version": "9.8.7", "commit": "abcdef0123456789" if commit else None}
    assert run("version").out == f"tinkex 9.8.7{' (abcdef012345)' if commit else ''}\n"


def test_version_works_without_metadata(run, no_commit, monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.distribution", missing)
    monkeypatch.setattr("sys.path", [])
    assert run("version").out == "tinkex unknown\n"
    assert run("version", "--deps").code == 0


def test_dependencies_one_per_line_and_as_a_json_list(run):
    lines = run("version", "--deps").out.splitlines()
    assert lines[0] == f"tinkex - {VERSION}"
    assert f"click - {importlib.metadata.version('click')}" in lines
    document = run("version", "--deps", "--json").json
    assert [f"{each['name']} - {each['version']}" for each in document] == lines
    assert not any(line.startswith("pytest ") for line in lines)


def test_missing_dependencies_are_said_to_be_missing(run, monkeypatch):
    def distribution(name):
        if name == "absent-thing":
            raise importlib.metadata.PackageNotFoundError(name)
        return FakeDistribution()

    monkeypatch.setattr("importlib.metadata.distribution", distribution)
    monkeypatch.setattr("sys.path", [])
    assert run("version", "--deps").out.splitlines() == [
        "tinkex - 9.8.7",
        "absent-thing - not installed",
        "click - 9.8.7",
        "numpy - 9.8.7",
    ]
    document = run("version", "--deps", "--json").json
    assert document[1] == {"name": "absent-thing", "version": None}


def test_module_runs_outside_any_repository(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-m", "tinkex", "version"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert re.fullmatch(rf"tinkex {re.escape(VERSION)}( \([0-9a-f]{{12}}\))?\n", ran.stdout)


def test_config_show_names_every_setting(run):
    shown = run("config", "show").out
    for field in Config.fields():
        assert field.name in shown
    assert "(default)" not in shown


def test_config_show_origin_says_who_won(run, monkeypatch, tmp_path):
    (tmp_path / "tinkex.toml").write_text("[client]\nmax_samples_in_flight = 3\ntimeout_s = 9\n")
    monkeypatch.setenv("TINKER_BASE_URL", "http://localhost:1")
    document = run("config", "show", "--origin", "--json", "--timeout", "2").json
    assert document["timeout_s"] == {"value": 2.0, "origin": "argument"}
    assert document["base_url"]["origin"] == "environment TINKER_BASE_URL"
    assert document["max_samples_in_flight"] == {
        "value": 3,
        "origin": f"file {tmp_path / 'tinkex.toml'}",
    }
    assert document["tags"] == {"value": [], "origin": "default"}
    lines = [line.split() for line in run("config", "show", "--origin").out.splitlines()]
    assert ["max_samples_in_flight", "3", "(file", f"{tmp_path}/tinkex.toml)"] in lines


def test_config_show_json_is_flat_without_origin(run):
    document = run("config", "show", "--json").json
    assert document["timeout_s"] == 60.0
    assert list(document) == [field.name for field in Config.fields()]


@pytest.mark.parametrize("extra", [(), ("--json",), ("--origin",), ("--json", "--origin")])
def test_config_show_masks_secrets(run, monkeypatch, extra):
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    monkeypatch.setenv("TINKEX_DEFAULT_HEADERS", '{"Authorization": "Bearer hunter2-hunter2-2"}')
    for ran in (run("config", "show", *extra), run("config", "show", "--api-key", KEY, *extra)):
        assert ran.code == 0
        assert KEY not in ran.out + ran.err
        assert "hunter2-hunter2" not in ran.out
        assert "tml-…a1b2" in ran.out


@pytest.mark.parametrize("is_json", [True, False])
def test_config_error_is_reported_without_the_key(run, is_json):
    ran = run("config", "show", "--api-key", KEY + " x", *(["--json"] if is_json else []))
    assert ran.code == 2
    assert "api_key" in ran.err
    assert KEY not in ran.err
    assert "invalid-config" in ran.err


def test_tables_are_aligned_and_cannot_steer_the_terminal(capsys):
    print_table([("a", None), ("long", "x\x1b[31m\ny")], header=("NAME", "VALUE"))
    assert capsys.readouterr().out == "NAME  VALUE\na     -\nlong  x\\x1b[31m\\ny\n"
    print_table([])
    assert capsys.readouterr().out == ""
    assert printable("ü…日本") == "ü…日本"
    say("hello\x07")
    assert capsys.readouterr() == ("", "hello\\x07\n")


def test_lazy_group_imports_only_what_is_called():
    group = LazyGroup("g", lazy={"broken": Lazy("no.such.module:command", "Is broken.")})

    @group.command()
    def fine():
        """Works."""

    context = click.Context(group)
    assert group.list_commands(context) == ["broken", "fine"]
    text = group.get_help(context)
    assert "Is broken." in text
    assert "Works." in text
    with pytest.raises(ModuleNotFoundError):
        group.get_command(context, "broken")


def test_lazy_target_must_be_a_command():
    group = LazyGroup("g", lazy={"odd": Lazy("json:dumps", "Is no command.")})
    with pytest.raises(TypeError, match="not a click command"):
        group.get_command(click.Context(group), "odd")
