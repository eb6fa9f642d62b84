"""How the engine's time is divided between training and sampling. Pure."""

from __future__ import annotations

from typing import Literal

from tinkex.fair_queue import FairShares

__all__ = ["TimeShares", "WorkKind"]

WorkKind = Literal["train", "sample"]


class TimeShares:
    """Half of the time each while both have work. Work that begins after a pause starts level."""

    def __init__(self) -> None:
        self._shares = FairShares()

    def next(self, *, can_train: bool, can_sample: bool) -> WorkKind | None:
        """What to do next; None if there is nothing to do."""
        kinds: list[WorkKind] = []
        if can_train:
            kinds.append("train")
        if can_sample:
            kinds.append("sample")
        self._shares.update(kinds)
        if not kinds:
            return None
        return "train" if self._shares.next(kinds) == "train" else "sample"

    def spent(self, kind: WorkKind, seconds: float) -> None:
        """Records engine time that was used."""
        self._shares.serve(kind, seconds)
