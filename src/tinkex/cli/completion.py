"""`tinkex completion`: the script a shell needs to complete Tinkex's commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command(short_help="Print a completion script for a shell.")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(context: click.Context, /, shell: str) -> None:
    """Print a completion script for a shell.

    \b
    bash:  tinkex completion bash > ~/.local/share/bash-completion/completions/tinkex
    zsh:   tinkex completion zsh > ~/.zfunc/_tinkex     (with ~/.zfunc in fpath)
    fish:  tinkex completion fish > ~/.config/fish/completions/tinkex.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "tinkex", "_TINKEX_COMPLETE").source())
