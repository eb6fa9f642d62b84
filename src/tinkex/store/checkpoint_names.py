"""Finds checkpoints by a name that is no path: that of a run, or a checkpoint's own."""

from __future__ import annotations

from sqlalchemy import Connection, func, select

from tinkex.store.checkpoints import Checkpoint, list_named, list_of_run
from tinkex.store.schema import models

__all__ = ["find_all"]

_SAMPLED_FROM = ("sampler_weights", "weights")
"""Kinds that can be sampled from; the first kind that exists under a name is used."""


def find_all(conn: Connection, owner: str, name: str) -> list[Checkpoint]:
    """Returns the owner's checkpoints that the name may stand for: the newest one of the run with
    that id, or all with that name, of one kind, or the newest one of each chain of runs with that
    name.
    """
    if newest := _newest(list_of_run(conn, owner, name)):
        return [newest]
    for kind in _SAMPLED_FROM:
        if found := list_named(conn, owner, kind, name):
            return found
    chains = _chains_named(conn, owner, name).values()
    newest_ones = [
        _newest([each for model_id in chain for each in list_of_run(conn, owner, model_id)])
        for chain in chains
    ]
    return [each for each in newest_ones if each is not None]


def _newest(found: list[Checkpoint]) -> Checkpoint | None:
    """Returns the newest checkpoint of the first kind that exists."""
    for kind in _SAMPLED_FROM:
        if of_kind := [each for each in found if each.kind == kind]:
            return max(of_kind, key=lambda each: each.created_at)
    return None


def _chains_named(conn: Connection, owner: str, name: str) -> dict[str, list[str]]:
    """Returns the owner's runs with this name, by the first run of their chain."""
    root_id = func.coalesce(models.c.root_id, models.c.model_id)
    query = select(root_id, models.c.model_id).where(models.c.owner == owner, models.c.name == name)
    chains: dict[str, list[str]] = {}
    for root, model_id in conn.execute(query):
        chains.setdefault(root, []).append(model_id)
    return chains
