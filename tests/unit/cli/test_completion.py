"""Shell completion: scripts, and what is offered without importing commands."""

import subprocess
import sys

import click
import pytest

from tinkex.cli.main import COMMANDS, root


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_of_each_shell(run, shell):
    ran = run("completion", shell)
    assert ran.code == 0
    assert f"_TINKEX_COMPLETE={shell}_complete" in ran.out


def test_other_shells_are_a_usage_error(run):
    ran = run("completion", "tcsh")
    assert ran.code == 2
    assert "'bash', 'zsh', 'fish'" in ran.err


def complete(words: str, cwd=None) -> list[str]:
    """What bash would offer for a line whose last word is being typed."""
    parts = words.split(" ")
    environ = {
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(parts) - 1),
        "_TINKEX_COMPLETE": "bash_complete",
        "PATH": "/usr/bin:/bin",
    }
    code = "import sys; sys.argv = ['tinkex']; from tinkex.cli.main import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60
    )
    assert ran.stderr == ""
    return [line.partition(",")[2] for line in ran.stdout.splitlines()]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("tinkex ", sorted(COMMANDS)),
        ("tinkex ch", ["chat", "checkpoint"]),
        ("tinkex checkpoint de", ["delete"]),
        ("tinkex run list --qu", ["--quiet"]),
        ("tinkex run --prompt-f", ["--prompt-file"]),
        ("tinkex train --schedule c", ["constant", "cosine"]),
        ("tinkex checkpoint list --type s", ["sampler_weights"]),
        ("tinkex completion f", ["fish"]),
    ],
)
def test_what_is_offered(words, expected):
    assert complete(words) == expected


def test_listing_commands_imports_none_of_them(monkeypatch):
    def refuse(name):
        raise AssertionError(f"{name} was imported")

    monkeypatch.setattr("tinkex.cli.lazy.import_module", refuse)
    items = root.shell_complete(click.Context(root), "")
    assert [item.value for item in items] == sorted(COMMANDS)
    assert items[0].help == COMMANDS["auth"].summary
