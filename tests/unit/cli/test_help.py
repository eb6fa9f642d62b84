"""Every command explains itself, and keeps the rules of the house."""

import ast
import re
from pathlib import Path

import click
import pytest

import tinkex.cli
from tinkex.cli.main import COMMANDS, root

DEVELOPMENT = {
    *("pytest", "hypothesis", "mypy", "pyright", "ruff", "coverage", "psutil"),
    *("tinker", "transformers", "peft", "pip", "setuptools", "hatchling"),
}


def commands() -> list[tuple[str, click.Command, str]]:
    """Every command: the words that lead to it, itself, and its help."""
    found = []

    def walk(command: click.Command, path: str, parent: click.Context | None = None) -> None:
        context = click.Context(
            command, parent, path.rpartition(" ")[2], help_option_names=["-h", "--help"]
        )
        found.append((path, command, command.get_help(context)))
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                walk(command.get_command(context, name), f"{path} {name}", context)

    walk(root, "tinkex")
    return found


HELPS = {path: text for path, _, text in commands()}


def test_commands_are_found_down_to_the_last():
    assert {f"tinkex {name}" for name in COMMANDS} <= set(HELPS)
    assert {"tinkex run list", "tinkex checkpoint push-hf", "tinkex keys create"} <= set(HELPS)


@pytest.mark.parametrize("path", HELPS)
def test_help_is_printed_by_the_command_itself(run, path):
    ran = run(*path.split()[1:], "--help")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"Usage: {path} ")
    short = run(*path.split()[1:], "-h")
    assert short.out == ran.out


@pytest.mark.parametrize(("path", "command", "_"), commands(), ids=list(HELPS))
def test_every_option_says_what_it_does(path, command, _):
    options = [each for each in command.params if isinstance(each, click.Option)]
    assert [each.opts[0] for each in options if not each.help and not each.hidden] == []


@pytest.mark.parametrize("path", HELPS)
def test_json_is_documented_where_there_is_json(path):
    has_json = re.search(r"^  --json ", HELPS[path], re.MULTILINE)
    if has_json:
        assert re.search(r"^  JSON", HELPS[path], re.MULTILINE)


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
