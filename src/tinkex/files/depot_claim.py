"""The database that a folder of adapters belongs to: a file in it, written once and never changed.

A server deletes folders that its database does not name, so two databases must never share one.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

__all__ = ["CLAIM", "claim_folder", "claimed_by"]

CLAIM = "tinkex-depot-id"
"""The name of the file; its text is the id of the database."""


def claim_folder(root: Path, database_id: str) -> str:
    """Claims the folder for the database; returns the id of the database that owns it, this one if
    it was unclaimed.

    If several servers claim a folder at the same time, one succeeds, and all get its id.

    Raises:
        OSError: the folder cannot be read or written.
    """
    claim = root / CLAIM
    if claim.exists():
        return claimed_by(root)
    draft = root / f".{CLAIM}.{uuid.uuid4().hex}"
    try:
        draft.write_text(database_id)
        _create(claim, draft)
    except FileExistsError:
        return claimed_by(root)
    finally:
        draft.unlink(missing_ok=True)
    return database_id


def claimed_by(root: Path) -> str:
    """Returns the id of the database that the folder belongs to.

    Raises:
        OSError: the folder is not claimed, or cannot be read.
    """
    return (root / CLAIM).read_text(errors="replace")


def _create(claim: Path, draft: Path) -> None:
    """Writes the draft's text to `claim`, unless the file exists."""
    try:
        os.link(draft, claim)  # never half written, also on NFS
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        with claim.open("x") as handle:
            handle.write(draft.read_text())
