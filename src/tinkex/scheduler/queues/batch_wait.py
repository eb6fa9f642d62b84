"""Whether a training batch that could start should wait a moment for other models to join it.

Pure. Tenants that train side by side get their results at the same time, and their next requests
arrive within milliseconds of each other. If the first started at once it would be computed alone
while all others wait; one batch of all has larger matrix products, which are faster. So a batch
waits for models that trained a moment ago, for a small share of its expected time. After repeated
fruitless waits it does so rarely, until a request arrives right after a batch that did not wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

__all__ = ["BatchWaitPolicy"]

_SHARE = 0.04
"""Longest wait as a share of the batch's expected time."""

_MOST_S = 0.04
_RECENT_S = 10.0
"""Models that have not trained for this long are not waited for."""

_BATCHES = 8
"""Number of recent batches whose fastest gives the expected time per token."""

_MAX_BACKOFF = 5
"""Back-off cap: after repeated fruitless waits only every 2**5-th batch waits."""


class BatchWaitPolicy:
    """Which models train on one base at present, and how long their work takes."""

    def __init__(self) -> None:
        self._trained_at: dict[str, float] = {}
        self._s_per_token: deque[float] = deque(maxlen=_BATCHES)
        self._num_fruitless = 0
        self._num_skipped = 0

    def is_worth_a_wait(self, ready: Mapping[str, int], now: float) -> bool:
        """Whether to wait for others. `ready` maps models to the tokens they would compute."""
        if not self.is_missed(ready, now):
            return False
        self._num_skipped += 1
        if self._num_skipped < 2 ** min(max(0, self._num_fruitless - 1), _MAX_BACKOFF):
            return False
        self._num_skipped = 0
        return True

    def patience_s(self, ready: Mapping[str, int]) -> float:
        """The longest wait in seconds, from the first moment these could start."""
        expected_s = min(self._s_per_token, default=0.0) * sum(ready.values())
        return min(_MOST_S, _SHARE * expected_s)

    def is_missed(self, ready: Mapping[str, int], now: float) -> bool:
        """Whether a model that trained a moment ago is not among those that could start."""
        self._forget(now)
        return bool(ready) and not self._trained_at.keys() <= ready.keys()

    def waited(self, *, has_come: bool) -> None:
        """Records whether another model joined during a wait."""
        self._num_fruitless = 0 if has_come else self._num_fruitless + 1

    def began(self, tokens: Mapping[str, int], at: float, others: Mapping[str, float]) -> None:
        """Records a batch that did not wait: the tokens of each model, when its last request
        arrived, and when requests of other models arrived that could run after it."""
        latest = at + self.patience_s(tokens)
        if any(came <= latest for model, came in others.items() if model in self._trained_at):
            self._num_fruitless = 0

    def trained(self, tokens: Mapping[str, int], seconds: float, now: float) -> None:
        """Records a batch that ran: the tokens of each model, and the seconds it took."""
        self._forget(now)
        self._trained_at.update(dict.fromkeys(tokens, now))
        self._s_per_token.append(seconds / max(1, sum(tokens.values())))

    def _forget(self, now: float) -> None:
        self._trained_at = {
            model_id: at for model_id, at in self._trained_at.items() if now - at < _RECENT_S
        }
