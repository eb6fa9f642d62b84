"""Reads a command line of ours as the command itself would, down to the values of its options."""

from __future__ import annotations

from typing import Any

import click

from tinkex.cli.main import root


class CommandLine:
    """`tinkex NAME --option=value ...`, with the options by the names of their parameters."""

    def __init__(self, words: list[str], variables: set[str]) -> None:
        self.name, *rest = words
        context = click.Context(root, info_name="tinkex")
        command = root.get_command(context, self.name)
        assert command is not None, f"no such command: {self.name}"
        context = click.Context(command, parent=context, info_name=self.name)
        self.options, left, _ = command.make_parser(context).parse_args(list(rest))
        assert left == [], f"not an option: {left}"
        for parameter in command.params:
            self._check(parameter, context, variables)

    def _check(
        self, parameter: click.Parameter, context: click.Context, variables: set[str]
    ) -> None:
        """Fails unless the value is one of the parameter's type. A file is of another machine."""
        value: Any = self.options.get(str(parameter.name))
        if value is None:
            is_set = parameter.envvar in variables
            assert is_set or not parameter.required, f"{self.name} needs {parameter.name}"
        elif not isinstance(parameter.type, click.Path):
            parameter.type_cast_value(context, value)
