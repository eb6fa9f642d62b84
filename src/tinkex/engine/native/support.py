"""Which decoders the kernels can run. Knows nothing of torch."""

from __future__ import annotations

from tinkex.engine.model.spec import DecoderSpec

__all__ = ["why_not_native"]


def why_not_native(spec: DecoderSpec) -> str | None:
    """Why the kernels cannot run such a decoder, as a part of a sentence; None if they can."""
    if spec.experts is not None:
        return f"they have no mixture of experts, which {spec.arch} models have"
    return None
