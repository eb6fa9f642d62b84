"""Choice of the implementation that computes a base model's sampling steps."""

from __future__ import annotations

import logging

import torch

from tinkex.engine.model.decoder import Backbone, Decoder
from tinkex.engine.native.build import NoKernels, library, team_function
from tinkex.engine.native.kernels import Kernels
from tinkex.engine.native.runner import NativeRunner
from tinkex.engine.native.support import why_not_native
from tinkex.engine.sampling.prefill_queue import SamplerLimits
from tinkex.engine.sampling.runner import StepRunner
from tinkex.engine.sampling.torch_runner import PagedRunner
from tinkex.engine.sampling.uncached_runner import UncachedRunner

__all__ = ["runner_for"]

_log = logging.getLogger(__name__)


def runner_for(backbone: Backbone, limits: SamplerLimits, *, with_kernels: bool) -> StepRunner:
    """Returns the fastest runner for the model and the machine; logs why none is faster."""
    if not isinstance(backbone, Decoder):
        return UncachedRunner(backbone)
    reason = _why_no_kernels(backbone)
    if with_kernels and reason is not None:
        _log.info("Sampling runs without compiled kernels: %s.", reason)
    elif with_kernels:
        try:
            team = team_function()
            kernels = Kernels(library(), team, torch.get_num_threads())
        except NoKernels as error:
            _log.warning("Sampling runs without compiled kernels: %s.", error)
        else:
            return NativeRunner(backbone, limits, kernels)
    return PagedRunner(backbone, limits)


def _why_no_kernels(decoder: Decoder) -> str | None:
    weight = decoder.head_VD
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return f"they are for float32 on a CPU, not {weight.dtype} on {weight.device.type}"
    return why_not_native(decoder.spec)
