"""Which folders rows of the store name; others are left over from a crash."""

from __future__ import annotations

from tinkex.store import checkpoints, models, samplers

__all__ = ["KNOWN_FOLDERS"]

KNOWN_FOLDERS = {
    "checkpoints": checkpoints.all_ids,
    "snapshots": models.snapshot_folders,
    "samplers": samplers.live_folders,
}
"""By kind of folder, the query of the ids that rows name."""
