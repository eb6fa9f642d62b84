"""Carries out calls that name folders, on the worker's own disk: fetches them before the call,
publishes them after it."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinkex.engine.interface import Engine
from tinkex.engine.remote.engine import local_folder

if TYPE_CHECKING:  # needs a package that is installed for object stores only
    from tinkex.depot.folder_cache import FolderCache

__all__ = ["FolderCalls"]

_FOLDER_AT = {"save_adapter": 1, "start_saving": 1, "load_adapter": 2, "load_sampler": 2}
"""The methods that name a folder, and the index of that argument."""


class FolderCalls:
    """Carries out an engine's calls with folders under `root`.

    With `copies`, folders are in a depot and `root` holds copies; without, `root` is a folder that
    the server sees as well.
    """

    def __init__(self, root: Path, copies: FolderCache | None) -> None:
        self._root = root
        self._copies = copies

    def __call__(self, engine: Engine, method: str, arguments: tuple[Any, ...]) -> Any:
        """Calls the engine's method and returns its result."""
        call = getattr(engine, method)
        if method not in _FOLDER_AT:
            return call(*arguments)
        at = _FOLDER_AT[method]
        folder = local_folder(self._root, arguments[at])
        folder.parent.mkdir(parents=True, exist_ok=True)
        if self._copies is not None and method.startswith("load"):
            self._copies.fetch(folder)
        returned = call(*arguments[:at], folder, *arguments[at + 1 :])
        if self._copies is None or method.startswith("load"):
            return returned
        if isinstance(returned, Future):
            return self._copies.publish_when_done(folder, returned)
        self._copies.publish(folder)
        return returned
