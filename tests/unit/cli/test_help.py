"""Every command explains itself, and the reference is made of what they say."""

import ast
import re
from pathlib import Path

import click
import pytest

import tinkex.cli
from tinkex.cli.main import COMMANDS, root
from tinkex.cli.reference import as_markdown, helps

HELPS = {" ".join(path): text for path, text in helps(root, ("tinkex",))}
DEVELOPMENT = {
    *("pytest", "hypothesis", "mypy", "pyright", "ruff", "coverage", "psutil"),
    *("tinker", "transformers", "peft", "pip", "setuptools", "hatchling"),
}


def commands() -> list[tuple[str, click.Command]]:
    found = []

    def walk(command, path):
        context = click.Context(command)
        found.append((path, command))
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                walk(command.get_command(context, name), f"{path} {name}")

    walk(root, "tinkex")
    return found


def test_help_reaches_every_command():
    assert set(HELPS) == {path for path, _ in commands()}
    assert {"tinkex run list", "tinkex checkpoint push-hf", "tinkex keys create"} <= set(HELPS)


@pytest.mark.parametrize("path", HELPS)
def test_help_is_printed_by_the_command_itself(run, path):
    ran = run(*path.split()[1:], "--help")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"Usage: {path} ")
    short = run(*path.split()[1:], "-h")
    assert short.out == ran.out


@pytest.mark.parametrize(("path", "command"), commands(), ids=lambda value: str(value))
def test_every_option_says_what_it_does(path, command):
    if path.startswith("tinkex serve"):
        pytest.skip("its options are described with the server's settings")
    options = [each for each in command.params if isinstance(each, click.Option)]
    assert [each.opts[0] for each in options if not each.help and not each.hidden] == []


@pytest.mark.parametrize("path", HELPS)
def test_json_is_documented_where_there_is_json(path):
    has_json = re.search(r"^  --json ", HELPS[path], re.MULTILINE)
    if has_json:
        assert re.search(r"^  JSON", HELPS[path], re.MULTILINE)


def test_reference_holds_every_help_and_is_the_same_each_time():
    text = as_markdown()
    assert text == as_markdown()
    for name in COMMANDS:
        assert f"### tinkex {name}\n" in text
    for each in HELPS.values():
        assert each in text
    assert "\x1b" not in text


def test_exit_codes_are_documented():
    assert re.search(r"0 done.*130 Ctrl-C", HELPS["tinkex"], re.DOTALL)


@pytest.mark.parametrize(
    "path", sorted(Path(tinkex.cli.__file__).parent.glob("*.py")), ids=lambda path: path.name
)
def test_no_development_tool_is_imported_at_run_time(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} & DEVELOPMENT == set()


def test_only_main_ends_the_process():
    for path in Path(tinkex.cli.__file__).parent.glob("*.py"):
        calls = re.findall(r"sys\.exit\(|os\._exit\(|raise SystemExit", path.read_text())
        assert calls == (["sys.exit("] if path.name == "main.py" else [])
