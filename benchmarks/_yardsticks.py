"""Wrappers of the sides that ours is measured against."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from benchmarks._model import model_folder
from benchmarks._sides import ROOT, Side
from benchmarks._vllm import vllm_python
from benchmarks._workload import Request, Row

from tinkex.engine.process.spawn import ENVIRONMENT

HERE = ROOT / "benchmarks"

CORES = sorted(os.sched_getaffinity(0))
THREADS = {"OMP_NUM_THREADS": str(len(CORES)), "OMP_PROC_BIND": "close"}
"""The best settings of threads."""
TUNED = {
    **THREADS,
    # Tensors of megabytes come and go with every operation. By default glibc returns each to the
    # system and has the next one's pages zeroed again; kept, a loop runs up to a third faster.
    "MALLOC_MMAP_THRESHOLD_": str(2**33),
    "MALLOC_TRIM_THRESHOLD_": str(2**34),
    "MALLOC_TOP_PAD_": str(2**26),
}
"""Environment that an experienced user sets for a loop on a CPU; the fastest
here for Transformers."""


class PeftSide(Side):
    """Transformers and PEFT training an adapter."""

    def __init__(self, rank: int, environment: dict[str, str] = TUNED) -> None:
        super().__init__([sys.executable, str(HERE / "_side_peft.py")], environment)
        self.call("load", folder=str(model_folder()), rank=rank)

    def step(self, rows: list[Row], microbatch: int = 0) -> float:
        """Returns the seconds of a training step."""
        return float(self.call("step", rows=rows, microbatch=microbatch))


class EngineSide(Side):
    """Our engine without server, store or protocol, in a process set up like the server's."""

    def __init__(self, model: Path | None = None) -> None:
        super().__init__([sys.executable, str(HERE / "_side_engine.py")], ENVIRONMENT)
        self.call("load", folder=str(model or model_folder()))

    def create(self, rank: int) -> str:
        """Creates an adapter and returns its id."""
        return str(self.call("create", rank=rank))

    def step(self, adapter_id: str, rows: list[Row]) -> float:
        """Returns the seconds of forward_backward and optim_step."""
        return float(self.call("step", adapter_id=adapter_id, rows=rows))

    def forward_backward(self, adapter_id: str, rows: list[Row]) -> float:
        """Returns the seconds of forward_backward alone."""
        return float(self.call("forward_backward", adapter_id=adapter_id, rows=rows))

    def forward(self, adapter_id: str, rows: list[Row]) -> float:
        """Returns the seconds of scoring all rows in one batch."""
        return float(self.call("forward", adapter_id=adapter_id, rows=rows))

    def first_token(self, tokens: list[int]) -> float:
        """Returns the seconds until the first streamed token of a prompt."""
        return float(self.call("first_token", tokens=tokens))


class GenerateSide(Side):
    """Transformers' `generate` over adapters given as PEFT folders."""

    def __init__(self, adapters: tuple[Path, ...]) -> None:
        super().__init__([sys.executable, str(HERE / "_side_generate.py")], TUNED)
        self.call("load", folder=str(model_folder()), adapters=[str(each) for each in adapters])

    def run(self, requests: list[Request]) -> list[float]:
        """Returns when each request was answered, in seconds since the start."""
        return list(self.call("run", requests=requests))

    def save_merged(self, folder: Path) -> None:
        """Writes the model with the first adapter merged into it."""
        self.call("save_merged", folder=str(folder))


class VllmSide(Side):
    """vLLM over a model folder and adapters given as PEFT folders, or none."""

    def __init__(self, model: Path, adapters: tuple[Path, ...] = ()) -> None:
        environment = {
            **TUNED,
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, CORES)),
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_CACHE_ROOT": str(ROOT / ".bench" / "vllm-cache"),
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        super().__init__([str(vllm_python()), str(HERE / "_side_vllm.py")], environment)
        folders = [str(each) for each in adapters]
        self.call("load", folder=str(model), adapters=folders)

    def __exit__(self, *error: object) -> None:
        with suppress(RuntimeError):  # it may have ended with this process
            self.call("stop")
        super().__exit__(*error)

    def run(self, requests: list[Request]) -> list[float]:
        """Returns when each request was answered, in seconds since the start."""
        return list(self.call("run", requests=requests))


class GemmSide(Side):
    """Measures the best rate of a matrix product over the model's shapes."""

    def __init__(self) -> None:
        super().__init__([sys.executable, str(HERE / "_side_gemm.py")], THREADS)
        self.call("prepare", folder=str(model_folder()))

    def rate(self) -> float:
        """Returns the present rate, in operations per second."""
        return float(self.call("rate"))
