"""Everything that can be set on an engine, in one place. Plain data, without torch."""

from __future__ import annotations

import msgspec

__all__ = ["DTYPES", "EngineOptions"]

DTYPES = ("float32", "bfloat16", "float16", "float64")
"""The types base weights may have, by their names in PyTorch."""


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The models of an engine and its resource limits.

    `models` maps a name to a model folder; several names may share one folder, which is then
    loaded once. None and 0 mean "as large as the machine allows".
    """

    models: dict[str, str]
    device: str = "cpu"
    dtype: str = "float32"
    num_threads: int | None = None  # of all `num_engines` together
    num_engines: int = 1  # engines that divide the threads and the memory of this machine
    machine_bytes: int | None = None  # free on it before the first of them started
    deterministic: bool = False  # every training request alone, so neighbours change no bit
    max_rank: int = 256
    losses: tuple[str, ...] = ()  # of installed packages, beside the built-in ones
    context_length: int | None = None
    memory_bytes: int | None = None
    microbatch_tokens: int = 1024  # more is hardly faster on a CPU and holds more activations
    prefill_tokens: int = 1024  # of prompts in one step of sampling
    prefill_tokens_beside: int = 512  # the same while answers are being written
    max_sequences: int = 256
    cache_tokens: int | None = None
    kernels: bool = True  # compiled ones for sampling, where they can be had
    trim_after_s: float = 60.0  # without work, after which memory kept for speed is given back
    crash_at: str = ""  # for tests: where this engine's process is to die (tinkex.crashpoints)
