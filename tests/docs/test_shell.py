"""Every shell line of the documentation is one that works here."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import click
import pytest

from tests.docs.pages import EXAMPLES, OTHERS, PAGES, ROOT, blocks, name_of
from tinkex.cli.main import root

WITH_SHELL = [page for page in [*PAGES, *OTHERS] if blocks(page, "bash")]
PLAIN = {
    "echo",
    "export",
    "install",
    "openssl",
    "curl",
    "tar",
    "tee",
    ".",
    "python3",
    "ray",
    "chmod",
}
OF_CLUSTERS = {"docker", "helm", "kubectl", "systemctl", "systemd-analyze", "useradd"}
TOOLS = {"gdb", "git", "pre-commit", "py-spy", "sqlite3"}  # of contributors, used by hand
SOURCES = sorted((ROOT / "src" / "tinkex").rglob("*.py"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def commands(block: str) -> list[list[str]]:
    """The commands of a block, in words, without comments and variables set for one command."""
    found = []
    for line in block.replace("\\\n", " ").splitlines():
        for part in re.split(r"&&|\|", line):
            words = shlex.split(part, comments=True)
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words.pop(0)
            if words:
                found.append(words)
    return found


@pytest.mark.parametrize("page", WITH_SHELL, ids=name_of)
def test_shell_lines_are_sound(page: Path) -> None:
    for block in blocks(page, "bash"):
        subprocess.run(["bash", "-n", "-c", block], check=True, capture_output=True)
        for words in commands(block):
            check(words)


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=name_of)
def test_commands_in_the_text_exist(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for line in re.findall(r"`(tinkex [a-z][^`]*)`", text):
        if "..." not in line:
            check_tinkex(shlex.split(line)[1:])
    for target in re.findall(r"`make ([a-z]+)`", text):
        assert target in TARGETS


def check(words: list[str]) -> None:
    """Fails unless the command exists and takes these options."""
    match words:
        case ["tinkex", *rest]:
            check_tinkex(rest)
        case ["make", target, *_]:
            assert target in TARGETS, f"no such target: {target}"
        case ["pip", "install", *packages]:
            check_extras(packages)
        case ["nice", *rest]:
            check(rest)
        case [program, *rest] if program.startswith("/opt/tinkex/bin/"):
            check([Path(program).name, *rest])
        case [script, *_] if script.startswith("deploy/"):
            assert os.access(ROOT / script, os.X_OK), script
        case ["python", "-m", "pytest", *rest]:
            check_pytest(rest)
        case ["python", "-m", "tinkex.compat", *_]:
            pass
        case ["python", "-m", module, *_]:
            assert (ROOT / module.replace(".", "/")).with_suffix(".py").is_file(), module
        case ["python", script, *_]:
            assert script in {"first.py", "-c"} or (ROOT / script).is_file(), script
        case [name, *_]:
            check_paths(words)
            assert name in PLAIN | TOOLS | OF_CLUSTERS, f"say in this test how to check {name!r}"


def check_paths(words: list[str]) -> None:
    """Fails unless the files of `deploy/` that are named are there."""
    for word in words:
        if re.match(r"deploy/[\w/.@-]+\.\w+$", word):
            assert (ROOT / word).exists(), word


def check_pytest(words: list[str]) -> None:
    """Fails unless the files, and the tests named in them, are there."""
    with_value = ("-k", "-m", "-n", "-o", "-p")
    values = {i + 1 for i, word in enumerate(words) if word in with_value}
    for word in [word for i, word in enumerate(words) if i not in values]:
        if not word.startswith("-"):
            path, _, test = word.partition("::")
            assert (ROOT / path).exists(), word
            assert not test or f"def {test}(" in (ROOT / path).read_text(encoding="utf-8"), word


def check_extras(packages: list[str]) -> None:
    for package in packages:
        assert not re.match(r"tinkex\b", package), "it is on no index: pip would not find it"
        if match := re.fullmatch(r"\.\[([\w,]+)\]", package):
            assert set(match[1].split(",")) <= set(PROJECT["optional-dependencies"])


def installs(text: str) -> list[str]:
    """What a text has `pip install` look for on an index under our name."""
    return re.findall(r"pip install(?: [^\n`]*?)?[\"' ]+(tinkex\b[^\s`\"']*)", text)


@pytest.mark.parametrize("path", [*PAGES, *OTHERS, *EXAMPLES, *SOURCES], ids=name_of)
def test_nothing_is_installed_from_an_index_that_has_it_not(path: Path) -> None:
    assert installs(path.read_text(encoding="utf-8")) == []


def test_first_page_says_how_to_install_from_a_clone() -> None:
    for page in (ROOT / "README.md", ROOT / "docs" / "index.md"):
        lines = [" ".join(words) for block in blocks(page, "bash") for words in commands(block)]
        assert lines.index("pip install torch") < lines.index("pip install .[server]"), page
        assert "git clone" in page.read_text(), page


def check_tinkex(words: list[str]) -> None:
    """Parses a command line of ours as far as the command itself would."""
    command, context = root, click.Context(root, info_name="tinkex")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        child = command.get_command(context, words[0])
        assert child is not None, f"no such command: {' '.join(words)}"
        command, context = child, click.Context(child, parent=context, info_name=words[0])
        words = words[1:]
    command.make_parser(context).parse_args(list(words))


def test_a_wrong_line_is_found() -> None:
    with pytest.raises(click.UsageError):
        check_tinkex(["serve", "--no-such-option"])
    with pytest.raises(AssertionError):
        check_tinkex(["nothing"])
    with pytest.raises(AssertionError):
        check(["docker", "compose", "-f", "deploy/compose/nothing.yaml", "up"])
    for words in (["make", "nothing"], ["python", "-m", "pytest", "tests/nothing.py"]):
        with pytest.raises(AssertionError):
            check(words)
    with pytest.raises(AssertionError):
        check_pytest(["-p", "no:randomly", "tests/store/test_operations.py::test_nothing"])
    for package in ("tinkex", "tinkex[server]"):
        with pytest.raises(AssertionError):
            check(["pip", "install", package])
        for quote in ("", "'", '"'):
            for option in ("", "-U "):
                assert installs(f"Run pip install {option}{quote}{package}{quote}.") != []
