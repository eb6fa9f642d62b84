"""Two halves of a batch at once, each computed by one thread on a core of its own.

Two threads that share every product wait for each other after each of them, and many operations are
too small to be shared well: LoRA's products, what is done row by row, what Python does in between.
Two threads with half of the rows each wait only at the end, and a core that is slow for a moment
holds up its own half alone. With more cores than two each half would need a team of threads, and
more teams than cores make all of them sleep instead of spin (`openmp_spin`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

__all__ = ["can_halve", "run_halves"]

Found = TypeVar("Found")


def can_halve(like: Tensor) -> bool:
    """Whether halves are faster than sharing: on a CPU, with two threads."""
    return like.device.type == "cpu" and torch.get_num_threads() == 2


def run_halves(first: Callable[[], Found], second: Callable[[], Found]) -> tuple[Found, Found]:
    """What the two return. Both have ended, whatever happens."""
    futures = [_threads().submit(half) for half in (first, second)]
    wait(futures)
    return futures[0].result(), futures[1].result()


@cache
def _threads() -> ThreadPoolExecutor:
    num_threads = torch.get_num_threads()
    both = threading.Barrier(2)
    threads = ThreadPoolExecutor(2, "half", initializer=_take_one_core)
    wait([threads.submit(both.wait) for _ in range(2)])
    torch.set_num_threads(num_threads)  # or threads that begin later had one as well
    return threads


def _take_one_core() -> None:
    torch.get_num_threads()  # takes over what holds for all, which would overwrite the next line
    torch.set_num_threads(1)
