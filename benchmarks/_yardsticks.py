"""The sides ours is measured against, ready to be called."""

from __future__ import annotations

import os
import sys

from benchmarks._model import model_folder
from benchmarks._sides import ROOT, Side
from benchmarks._workload import Row

HERE = ROOT / "benchmarks"

TUNED = {
    "OMP_NUM_THREADS": str(os.cpu_count()),
    "OMP_PROC_BIND": "close",
    # Tensors of megabytes come and go with every operation. By default glibc returns each to the
    # system and has the next one's pages zeroed again; kept, a loop runs up to a third faster.
    "MALLOC_MMAP_THRESHOLD_": str(2**33),
    "MALLOC_TRIM_THRESHOLD_": str(2**34),
    "MALLOC_TOP_PAD_": str(2**26),
}
"""What somebody who tunes a CPU loop sets; found fastest here for Transformers."""


class PeftSide(Side):
    """Transformers and PEFT training an adapter."""

    def __init__(self, rank: int, environment: dict[str, str] = TUNED) -> None:
        super().__init__([sys.executable, str(HERE / "_side_peft.py")], environment)
        self.call("load", folder=str(model_folder()), rank=rank)

    def step(self, rows: list[Row], microbatch: int = 0) -> float:
        """Seconds of a training step."""
        return float(self.call("step", rows=rows, microbatch=microbatch))


class GemmSide(Side):
    """The best rate of a matrix product over the model's shapes."""

    def __init__(self) -> None:
        super().__init__([sys.executable, str(HERE / "_side_gemm.py")], _threads())
        self.call("prepare", folder=str(model_folder()))

    def rate(self) -> float:
        """Operations per second, now."""
        return float(self.call("rate"))


def _threads() -> dict[str, str]:
    return {name: value for name, value in TUNED.items() if name.startswith("OMP")}
