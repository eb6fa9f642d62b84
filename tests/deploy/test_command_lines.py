"""The check of command lines finds wrong ones."""

from __future__ import annotations

import click
import pytest

from tests.deploy.command_lines import CommandLine

JOIN = ["worker", "--join=head:8001", "--token-file=/run/token"]


def test_options_are_read() -> None:
    line = CommandLine([*JOIN, "--model=a=/a", "--model=b=/b"], set())
    assert line.options["model_texts"] == ["a=/a", "b=/b"]


@pytest.mark.parametrize(
    "words",
    [
        ["serve", "--no-such-option"],
        ["serve", "--port=many"],
        ["serve", "--port=8000", "--lease-s=ten"],
        [*JOIN, "--model=a=/a", "--dtype=float3"],
    ],
)
def test_a_wrong_option_is_found(words: list[str]) -> None:
    with pytest.raises(click.UsageError):
        CommandLine(words, set())


@pytest.mark.parametrize("words", [["nothing"], JOIN, ["serve", "word"]])
def test_a_wrong_line_is_found(words: list[str]) -> None:
    with pytest.raises(AssertionError):
        CommandLine(words, set())


def test_variables_stand_for_options() -> None:
    CommandLine(JOIN, {"TINKEX_MODEL"})
