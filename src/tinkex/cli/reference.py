"""The command line's reference as Markdown, made of the help itself.

    python -m tinkex.cli.reference > docs/cli.md

Run where documentation is built; no command loads it.
"""

from __future__ import annotations

from collections.abc import Iterator

import click

from tinkex.cli.main import root

WIDTH = 90
_INTRODUCTION = """\
# Command line

Made from the commands' own help by `python -m tinkex.cli.reference`; do not edit.
"""


def as_markdown() -> str:
    """One section for each command, in the order of the lists of commands."""
    parts = [_INTRODUCTION]
    for path, text in helps(root, ("tinkex",)):
        parts.append(f"{'#' * min(4, len(path) + 1)} {' '.join(path)}\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


def helps(
    command: click.Command, path: tuple[str, ...], parent: click.Context | None = None
) -> Iterator[tuple[tuple[str, ...], str]]:
    """The help of a command and of all below it, each with the words that lead to it."""
    context = click.Context(
        command, parent, path[-1], terminal_width=WIDTH, max_content_width=WIDTH, color=False
    )
    context.help_option_names = ["-h", "--help"]
    yield path, command.get_help(context).rstrip()
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None and not child.hidden:
                yield from helps(child, (*path, name), context)


if __name__ == "__main__":
    click.echo(as_markdown(), nl=False)
