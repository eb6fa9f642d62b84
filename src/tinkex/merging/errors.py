"""Why a model cannot be merged."""

from __future__ import annotations

__all__ = ["NotMergeableError"]


class NotMergeableError(Exception):
    """The adapter and the base do not make one model; the text says why and what to do."""
