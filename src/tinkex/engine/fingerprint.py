"""The fingerprint of a PyTorch engine: what its results depend on besides the requests."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from tinkex.engine.interface import EngineFingerprint
from tinkex.engine.options import EngineOptions
from tinkex.version import __version__

__all__ = ["torch_fingerprint"]


def torch_fingerprint(options: EngineOptions, *, has_kernels: bool) -> EngineFingerprint:
    """Returns the fingerprint of an engine in this process. `has_kernels`: sampling uses
    the compiled kernels."""
    return EngineFingerprint(
        device=options.device,
        hardware=_hardware(torch.device(options.device)),
        dtype=options.dtype,
        num_threads=torch.get_num_threads(),
        torch_version=str(torch.__version__),
        tinkex_version=__version__,
        kernels="native" if has_kernels else "",
    )


def _hardware(device: torch.device) -> str:
    """Returns the processor's or accelerator's name: its vector width decides the order of sums."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
