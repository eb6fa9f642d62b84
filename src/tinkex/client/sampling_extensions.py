"""Sampling parameters that not every server knows.

A server announces them in `client/config`. One that does not know a parameter may drop it and say
nothing, so nothing is sent to it.
"""

from __future__ import annotations

from collections.abc import Collection

from tinkex.errors import ValidationError
from tinkex.types._extensions import sampling_extension
from tinkex.types._parameters import extensions_used
from tinkex.types.sampling import SamplingParams

__all__ = ["check_announced"]


def check_announced(params: SamplingParams, announced: Collection[str]) -> None:
    """Returns if the server has announced every extension that is in use.

    Raises:
        ValidationError: it has not.
    """
    for name in extensions_used(params):
        if sampling_extension(name) not in announced:
            raise ValidationError(
                f"This server does not announce the sampling parameter {name}, set to "
                f"{getattr(params, name)!r:.80}, and might ignore it. Nothing was sent.",
                hint="Leave it out, or use a server that lists it in sampling_extensions of "
                "get_server_capabilities().",
                code="unknown-sampling-parameter",
            )
