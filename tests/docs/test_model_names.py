"""Examples name a model that `tinkex serve` offers as it comes, so that they run as they stand."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.docs.pages import EXAMPLES, OTHERS, PAGES, ROOT, blocks, name_of
from tinkex.cli.main import root
from tinkex.server.models.pull import DEFAULT_MODEL, RECIPES

OFFERED = set(RECIPES[DEFAULT_MODEL].names)
SOURCES = sorted((ROOT / "src" / "tinkex").rglob("*.py"))
_IN_SHELL = re.compile(r"--base-model[ =]([^\s\"'`]+)")
_IN_PYTHON = re.compile(r"""(?:base_model=|load_tokenizer\()["']([^"']+)["']""")
_PLACEHOLDER = re.compile(r"[A-Z_]+")


def helps(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Every command with the text of its help."""
    context = click.Context(
        command, info_name=" ".join(("tinkex", *path)), help_option_names=["-h", "--help"]
    )
    yield " ".join(("tinkex", *path)), command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from helps(child, (*path, name))


def named(text: str) -> set[str]:
    """The models that a text asks a server for."""
    found = {*_IN_SHELL.findall(text), *_IN_PYTHON.findall(text)}
    return {name for name in found if not _PLACEHOLDER.fullmatch(name)}


HELPS = dict(helps(root))


@pytest.mark.parametrize("command", HELPS)
def test_models_in_help(command: str) -> None:
    assert named(HELPS[command]) <= OFFERED


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=name_of)
def test_models_on_pages(page: Path) -> None:
    texts = [text for kind in ("bash", "python", "text") for text in blocks(page, kind)]
    assert set().union(*map(named, texts)) <= OFFERED


@pytest.mark.parametrize("path", EXAMPLES, ids=name_of)
def test_models_in_examples(path: Path) -> None:
    assert named(path.read_text()) <= OFFERED


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_models_in_docstrings(path: Path) -> None:
    tree = ast.parse(path.read_text())
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds)]
    assert set().union(*map(named, texts)) <= OFFERED


def test_names_are_found() -> None:
    assert named('tinkex run --base-model Qwen/Q --prompt "x"') == {"Qwen/Q"}
    assert named('create_lora_training_client(base_model="m")') == {"m"}
    assert named("--base-model NAME  The model.") == set()
    assert sum(bool(named(text)) for text in HELPS.values()) >= 4
