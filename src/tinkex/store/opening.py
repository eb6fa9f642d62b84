"""Opening the database of a server, with errors an operator can act on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from tinkex.errors import ConfigError
from tinkex.store.database import Database
from tinkex.store.leader_lease import LeaderLease, OnLost
from tinkex.store.store_errors import as_store_error

__all__ = ["open_database", "open_lease", "shown_url"]

_FORMS = "Write --database-url as sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME."


def open_database(
    url: str, *, readers: int = 4, reserve_bytes: int = 0, lease: LeaderLease | None = None
) -> Database:
    """Opens and migrates the database at an SQLAlchemy URL.

    Raises:
        ConfigError: the URL is none, nothing can be opened there, or a newer version made it.
    """
    with _explained(url):
        return Database(url, readers=readers, reserve_bytes=reserve_bytes, lease=lease)


def open_lease(url: str, life_s: float, on_lost: OnLost) -> LeaderLease | None:
    """Returns the leader's lease of a PostgreSQL database, not taken yet; None for an SQLite file.

    Raises:
        ConfigError: the URL is none, nothing can be opened there, or a newer version made it.
    """
    with _explained(url):
        if make_url(url).get_backend_name() == "sqlite":
            return None
        return LeaderLease(url, life_s, on_lost)


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """Converts an error in the `with` block into one of the database.

    Raises:
        ConfigError: there was one.
    """
    try:
        yield
    except (ArgumentError, ImportError) as error:  # also for an unknown kind of database
        reason = "it is not the URL of a supported database"
        raise _unusable(url, reason, _FORMS) from error
    except SQLAlchemyError as error:
        if as_store_error(error).code == "store-damaged":
            advice = "Restore it from a backup, or choose another --data-dir or --database-url."
            raise _unusable(url, "the file is damaged, or not a database", advice) from error
        cause = getattr(error, "orig", None) or error
        reason = (str(cause).splitlines() or [type(cause).__name__])[0][:300].rstrip(".")
        advice = "Check --database-url (or --data-dir), and that the database can be reached."
        raise _unusable(url, reason, advice) from error


def shown_url(url: str) -> str:
    """Returns the URL without its password and its query, which may hold passwords too."""
    try:
        return make_url(url).set(query={}).render_as_string(hide_password=True)
    except ArgumentError:
        return url.rpartition("@")[2].partition("?")[0]  # around it there may be a password


def _unusable(url: str, reason: str, advice: str) -> ConfigError:
    message = f"The database {shown_url(url)} cannot be opened: {reason}."
    return ConfigError(message, hint=advice, code="database-unusable")
