"""The keys a server has when it starts: one given from outside, or one made for the person at the
machine, so that a fresh data folder can be used at once."""

from __future__ import annotations

import logging

from sqlalchemy import Connection

from tinkex.errors import ConfigError
from tinkex.store import Database, StoreError, keys, owners

__all__ = ["keep_bootstrap_key", "make_first_key", "revoke_first_key"]

_BOOTSTRAP = "bootstrap"

_logger = logging.getLogger(__name__)


def keep_bootstrap_key(db: Database, bootstrap_key: str | None) -> None:
    """Keeps the key given from outside, if there is one.

    Raises:
        ConfigError: it is none that a client would send.
    """
    if bootstrap_key is None:
        return
    if not bootstrap_key.startswith(keys.PREFIX):
        raise ConfigError(
            f"The bootstrap key must begin with {keys.PREFIX!r}.",
            hint="The official client sends no other keys.",
            code="bad-bootstrap-key",
        )
    db.write(keys.add, bootstrap_key, name=_BOOTSTRAP, owner=_BOOTSTRAP)


def make_first_key(db: Database) -> str | None:
    """A key made because none is usable; None if one is."""
    return db.write(_make_if_needed)


def revoke_first_key(db: Database, key: str) -> None:
    """Revokes a key that could not be shown; logs how to get one if even that fails."""
    try:
        db.write_freeing(_revoke, key)
    except StoreError as error:
        _logger.error(
            "The first key was not shown and could not be revoked (%s). Make another with "
            "'tinkex keys create', and revoke it with 'tinkex keys revoke'.",
            error,
        )


def _revoke(conn: Connection, key: str) -> None:
    made = keys.find(conn, keys.hash_key(key))
    if made is not None:
        keys.revoke(conn, made.key_id)


def _make_if_needed(conn: Connection) -> str | None:
    if any(key.revoked_at is None for key in keys.list_all(conn)):
        return None
    key = keys.new_key()
    owner = owners.default_owner(conn) or owners.local_owner()
    keys.add(conn, key, name="first", owner=owner)
    return key
