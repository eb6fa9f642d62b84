"""Models with all their names: one model may be served under several, the first is its main one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from tinkex.server.config import ServedModel

__all__ = ["ModelNames", "group_names", "names_of"]


class ModelNames(msgspec.Struct, frozen=True, kw_only=True):
    """The main name of a model, and its others."""

    name: str
    aliases: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} (also {', '.join(self.aliases)})" if self.aliases else self.name


def group_names(named: Iterable[tuple[str, str]]) -> list[ModelNames]:
    """One entry per model, of pairs (name, where it comes from); an empty origin is none."""
    names: dict[str, list[str]] = {}
    for name, origin in named:
        names.setdefault(origin or f"={name}", []).append(name)
    return [ModelNames(name=each[0], aliases=tuple(each[1:])) for each in names.values()]


def names_of(models: Iterable[ServedModel]) -> list[ModelNames]:
    """The names of the models a server is to serve."""
    return group_names((model.name, _origin(model.source)) for model in models)


def _origin(source: str) -> str:
    """The one spelling of a local folder, however it was given; a hub id as it is."""
    path = Path(source).expanduser()
    return str(path.resolve()) if source and path.exists() else source
