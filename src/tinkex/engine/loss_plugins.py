"""Losses of installed packages, beside the built-in ones.

A package offers a loss as an entry point of the group `tinkex.losses`: the entry point's name is
the loss's name and leads to a `tinkex.losses.Loss`. Its code runs in the engine's process with the
rights of the server, so nothing is imported unless the operator has named the loss. A package
cannot replace a built-in loss, or one of another package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points

from tinkex.engine.errors import EngineUserError
from tinkex.losses import BUILT_IN, Loss

__all__ = ["GROUP", "load_losses"]

GROUP = "tinkex.losses"


def load_losses(names: Sequence[str] = ()) -> Mapping[str, Loss]:
    """Returns the built-in losses and the named ones of installed packages, by name.

    Raises:
        EngineUserError: a named loss is not installed, is named twice, or cannot be used.
    """
    return {**BUILT_IN, **{name: _loaded(_entry(name)) for name in names}}


def _entry(name: str) -> EntryPoint:
    if name in BUILT_IN:
        raise _refusal(name, "is built in and cannot be replaced. Remove it from the settings.")
    offered = entry_points(group=GROUP)
    found = [each for each in offered if each.name == name]
    if not found:
        names = ", ".join(sorted({each.name for each in offered})) or "none"
        raise _refusal(
            name,
            f"is not offered by any installed package (entry point group {GROUP!r}; offered: "
            f"{names}). Install its package where the server runs, or remove it.",
        )
    if len(found) > 1:
        packages = " and ".join(sorted(each.dist.name for each in found if each.dist))
        raise _refusal(name, f"is offered by {packages}. Uninstall all but one.")
    return found[0]


def _loaded(entry: EntryPoint) -> Loss:
    try:
        loss = entry.load()
    except Exception as error:  # any code may run here
        raise _refusal(
            entry.name, f"cannot be loaded from {entry.value!r}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(loss, Loss):
        raise _refusal(entry.name, f"is a {type(loss).__name__} at {entry.value!r}, not a Loss.")
    if loss.name != entry.name:
        raise _refusal(entry.name, f"names itself {loss.name!r} at {entry.value!r}.")
    return loss


def _refusal(name: str, why: str) -> EngineUserError:
    return EngineUserError(f"The loss {name!r} {why}", code="bad-loss-plugin", field="losses")
