"""Runs the parts of a training batch in parallel, each computed by one thread on one core.

Threads that share every product wait for each other after each of them, and many operations are
too small to be shared: LoRA's products, elementwise work, what Python does in between. Threads that
each compute a part of the sequences wait only at the end, and a core that is slow for a moment
delays its own part alone. Every part gets one thread, never a team: more OpenMP threads than cores
would turn spinning off for all of them (`native.openmp_spin`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

__all__ = ["num_part_threads", "run_parts"]

_MAX_PARTS = 4
"""Maximum parts. More make a part of a micro-batch too small for fast products: 4 parts of 256
tokens take a tenth more CPU time than one of 1,024, 8 parts of 128 a quarter more. Each part may
also need a gradient of its own.
"""

Result = TypeVar("Result")


def num_part_threads(like: Tensor) -> int:
    """The maximum number of parts of a batch: one per thread on a CPU; 1 means undivided."""
    num_threads = torch.get_num_threads()
    return num_threads if like.device.type == "cpu" and num_threads <= _MAX_PARTS else 1


def run_parts(parts: Sequence[Callable[[], Result]]) -> list[Result]:
    """Returns the results of the parts, in order. All have ended when it returns or raises."""
    threads = _threads(len(parts))
    futures = [threads.submit(part) for part in parts]
    wait(futures)
    return [future.result() for future in futures]


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    """`count` threads, in each of which torch runs on one thread."""
    num_threads = torch.get_num_threads()
    all_started = threading.Barrier(count)
    threads = ThreadPoolExecutor(count, "train-part", initializer=_use_one_thread)
    wait([threads.submit(all_started.wait) for _ in range(count)])
    torch.set_num_threads(num_threads)  # threads that start later take over the last setting
    return threads


def _use_one_thread() -> None:
    torch.get_num_threads()  # takes over the global setting now: later it would undo the next line
    torch.set_num_threads(1)
