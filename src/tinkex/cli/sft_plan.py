"""The examples and learning rate of each step: pure functions of the options.

Equal inputs give an equal plan, so that a resumed run neither repeats nor
misses a batch.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True, slots=True)
class Plan:
    """The order of the examples and the learning rate of each step."""

    num_examples: int
    batch_size: int
    num_epochs: int
    seed: int
    learning_rate: float
    schedule: Schedule = "linear"
    warmup_steps: int = 0
    max_steps: int | None = None

    @property
    def steps_per_epoch(self) -> int:
        """The number of steps that see every example once; the last batch may be smaller."""
        return math.ceil(self.num_examples / self.batch_size)

    @property
    def num_steps(self) -> int:
        """The number of steps of the whole run."""
        planned = self.steps_per_epoch * self.num_epochs
        return planned if self.max_steps is None else min(planned, self.max_steps)

    def batch(self, step: int) -> list[int]:
        """Returns the indexes of the examples of a step, from 0."""
        epoch, place = divmod(step, self.steps_per_epoch)
        order = _shuffled(self.num_examples, self.seed, epoch)
        return list(order[place * self.batch_size : (place + 1) * self.batch_size])

    def rate(self, step: int) -> float:
        """Returns the learning rate of a step, from 0."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        left = max(1, self.num_steps - self.warmup_steps)
        progress = min(1.0, (step - self.warmup_steps) / left)
        if self.schedule == "linear":
            return self.learning_rate * (1 - progress)
        if self.schedule == "cosine":
            return self.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))
        return self.learning_rate


@lru_cache(maxsize=2)
def _shuffled(count: int, seed: int, epoch: int) -> tuple[int, ...]:
    order = list(range(count))
    random.Random(f"{seed}/{epoch}").shuffle(order)  # noqa: S311  nothing secret about an order
    return tuple(order)
