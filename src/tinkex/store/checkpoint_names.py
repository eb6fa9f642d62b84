"""Checkpoints by a name that is no path: that of a run, or a checkpoint's own."""

from __future__ import annotations

from sqlalchemy import Connection

from tinkex.store.checkpoints import Checkpoint, list_named, list_of_run

__all__ = ["find_all"]

_SAMPLED_FROM = ("sampler_weights", "weights")
"""Kinds that can be sampled from; the first one that there is of a name is meant."""


def find_all(conn: Connection, owner: str, name: str) -> list[Checkpoint]:
    """The owner's checkpoints that the name may mean: the newest one of the run of that id, or all
    with that name, one kind of them."""
    of_run = list_of_run(conn, owner, name)
    for kind in _SAMPLED_FROM:
        if newest := [each for each in of_run if each.kind == kind][-1:]:
            return newest
    for kind in _SAMPLED_FROM:
        if found := list_named(conn, owner, kind, name):
            return found
    return []
