"""Whether training work that could begin should wait a moment for others to join it.

Pure. Tenants that train side by side get their results at one time, and their next requests come
within milliseconds of each other. Begun at once, the first would be computed alone and hold up all
others; one batch of all has larger products, which are faster. So a batch waits for those who
trained a moment ago, for a small share of the time it will take itself, and seldom where that was
in vain more than once. Who comes right after a batch that did not wait has begun shows that waiting
is worth it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

__all__ = ["BatchWaitPolicy"]

_SHARE = 0.04
"""Of the time a batch will take: nobody notices more than that."""

_MOST_S = 0.04
_RECENT_S = 10.0
"""Whoever has not trained for so long is not waited for."""

_BATCHES = 8
"""How many are remembered: the quickest of them tells how long work takes at most."""

_SELDOMEST = 5
"""After so many waits in vain beyond the first, or more, one batch of 2 ** this waits."""


class BatchWaitPolicy:
    """Who trains on one base at present, and how long their work takes."""

    def __init__(self) -> None:
        self._trained_at: dict[str, float] = {}
        self._s_per_token: deque[float] = deque(maxlen=_BATCHES)
        self._num_in_vain = 0
        self._num_skipped = 0

    def is_worth_a_wait(self, ready: Mapping[str, int], now: float) -> bool:
        """Whether to wait for others. `ready` maps models to the tokens they would compute."""
        if not self.is_missed(ready, now):
            return False
        self._num_skipped += 1
        if self._num_skipped < 2 ** min(max(0, self._num_in_vain - 1), _SELDOMEST):
            return False
        self._num_skipped = 0
        return True

    def patience_s(self, ready: Mapping[str, int]) -> float:
        """How long these may wait in all."""
        expected_s = min(self._s_per_token, default=0.0) * sum(ready.values())
        return min(_MOST_S, _SHARE * expected_s)

    def is_missed(self, ready: Mapping[str, int], now: float) -> bool:
        """Whether somebody who trained a moment ago is not among the models that could begin."""
        self._forget(now)
        return bool(ready) and not self._trained_at.keys() <= ready.keys()

    def waited(self, *, has_come: bool) -> None:
        """Notes whether a wait brought anybody."""
        self._num_in_vain = 0 if has_come else self._num_in_vain + 1

    def began(self, tokens: Mapping[str, int], at: float, others: Mapping[str, float]) -> None:
        """Notes a batch that did not wait: the tokens of each model, when its last request had
        come, and when those of other models came that could run after it."""
        latest = at + self.patience_s(tokens)
        if any(came <= latest for model, came in others.items() if model in self._trained_at):
            self._num_in_vain = 0

    def trained(self, tokens: Mapping[str, int], seconds: float, now: float) -> None:
        """Notes a batch that ran: the tokens of each model, and how long all of it took."""
        self._forget(now)
        self._trained_at.update(dict.fromkeys(tokens, now))
        self._s_per_token.append(seconds / max(1, sum(tokens.values())))

    def _forget(self, now: float) -> None:
        self._trained_at = {
            model_id: at for model_id, at in self._trained_at.items() if now - at < _RECENT_S
        }
