"""The database: keys, sessions, models, operations, results, samplers and checkpoints.

`Database` runs functions over a connection: reads in the caller's thread, writes one after the
other in a writer thread that commits them in groups. The modules beside it are such functions, by
subject. Every row carries its owner and every query that serves a caller names the owner.
Knows SQL; knows nothing of HTTP or tensors.
"""

from __future__ import annotations

from tinkex.store.database import Database
from tinkex.store.store_errors import StoreError

__all__ = ["Database", "StoreError"]
