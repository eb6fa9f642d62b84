"""The quota of one tenant's bytes on disk: the operator's limit, or a share of the disk.

The share is of the space there is for tenants' files: what they take already, and what is free. A
tenant alone may use most of it; the rest stays free for other tenants and for the log. Files that
tenants add or delete do not change the sum, only other programs on the same disk do.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from sqlalchemy import Connection

from tinkex.store.quotas import QuotaExceeded, disk_use, disk_use_of_all

__all__ = ["DiskQuota"]

_SHARE_PERCENT = 80
_FRESH_S = 5.0  # the rows of all tenants are summed up once in this time, or before a refusal


class DiskQuota:
    """The limit for each tenant of the server whose files lie in `folder`. Thread-safe.

    `set_bytes` is the limit itself, or 0 for the share.
    """

    def __init__(self, folder: Path, set_bytes: int = 0) -> None:
        self._folder = folder
        self._set_bytes = set_bytes
        self._share_bytes = 0
        self._summed_at = -float("inf")

    def limit(self, conn: Connection) -> int:
        """Returns the bytes that one tenant's files may take."""
        if self._set_bytes:
            return self._set_bytes
        if time.monotonic() - self._summed_at > _FRESH_S:
            self._sum_up(conn)
        return self._share_bytes

    def check(self, conn: Connection, owner: str) -> None:
        """Refuses to write more once the limit is reached.

        Raises:
            QuotaExceeded: the owner's files take as much as the limit.
        """
        held = disk_use(conn, owner).total
        if held < self.limit(conn):
            return
        if not self._set_bytes:
            self._sum_up(conn)  # there may be more space by now
        if held >= (most := self.limit(conn)):
            share = f" ({_SHARE_PERCENT} % of the space on its disk)"
            raise QuotaExceeded(
                f"Your checkpoints, samplers and models take {held} bytes on disk, and this "
                f"server's limit is {most}{'' if self._set_bytes else share}.",
                hint="Delete checkpoints you do not need ('tinkex checkpoint delete'), and close "
                "clients that are done: their unnamed samplers go with them. The operator sets the "
                "limit with --max-disk-bytes-per-owner.",
            )

    def _sum_up(self, conn: Connection) -> None:
        space = shutil.disk_usage(self._folder).free + disk_use_of_all(conn)
        self._share_bytes = space * _SHARE_PERCENT // 100
        self._summed_at = time.monotonic()
