"""A click group whose commands are imported when they are called, not when they are listed."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class Lazy(NamedTuple):
    """The location of a command ("module:attribute"), and its line in the list of commands."""

    target: str
    summary: str


class LazyGroup(click.Group):
    """A group that knows the names and summaries of its commands without importing them.

    `aliases` are further names (`ls` for `list`) that work but are not listed.
    """

    def __init__(
        self,
        *args: Any,
        lazy: Mapping[str, Lazy] | None = None,
        aliases: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = dict(lazy or {})
        self.aliases = dict(aliases or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns all names, loaded or not."""
        return sorted({*super().list_commands(ctx), *self.lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Returns the command of this name, imported now."""
        cmd_name = self.aliases.get(cmd_name, cmd_name)
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self.lazy[cmd_name].target.partition(":")
        command = getattr(import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{module}:{attribute} is not a click command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Returns the command; for an unknown name, raises an error that lists similar names."""
        try:
            name, command, rest = super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            names = self.list_commands(ctx)
            raise click.NoSuchCommand(error.command_name, possibilities=names, ctx=ctx) from None
        return self.aliases.get(name, name) if name else name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Formats the list of commands, from the summaries alone."""
        if rows := [(name, self._summary(ctx, name)) for name in self.list_commands(ctx)]:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes names from the summaries alone, and this group's own options."""
        from click.shell_completion import CompletionItem

        fitting = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        names = [CompletionItem(name, help=self._summary(ctx, name)) for name in fitting]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def _summary(self, ctx: click.Context, name: str) -> str:
        if name in self.lazy:
            return self.lazy[name].summary
        command = super().get_command(ctx, name)
        return command.get_short_help_str(limit=80) if command else ""


class ActingGroup(LazyGroup):
    """A group that acts itself if none of its commands is named.

    Its function is called in either case and must return at once if `ctx.invoked_subcommand`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, invoke_without_command=True, **kwargs)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Returns `[OPTIONS] [list|info]`: the commands are few, and naming one is optional."""
        return ["[OPTIONS]", f"[{'|'.join(self.list_commands(ctx))}]"]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Returns the command; `run --json list` would drop an option, so it is refused."""
        resolved = super().resolve_command(ctx, args)
        given = [
            parameter.opts[0]
            for parameter in self.params
            if ctx.get_parameter_source(parameter.name or "")
            is click.core.ParameterSource.COMMANDLINE
        ]
        if given and not ctx.resilient_parsing:
            place = f"{ctx.command_path} {resolved[0]}"
            raise click.UsageError(f"Write {given[0]} after '{place}', not before.", ctx)
        return resolved
