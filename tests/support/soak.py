"""How much of a campaign to run: a short seeded share in `make test`, all of it in `make soak`.

`TINKEX_SOAK=1` asks for the long form. `TINKEX_SEED` chooses another walk; every campaign says
its seed when it fails, so a failure can be run again.
"""

from __future__ import annotations

import os

__all__ = ["IS_SOAK", "SEED", "amount"]

IS_SOAK = os.environ.get("TINKEX_SOAK", "") not in ("", "0")
SEED = int(os.environ.get("TINKEX_SEED", "20261116"))


def amount(short: int, soak: int) -> int:
    """`soak` in a soak run, `short` in every other."""
    return soak if IS_SOAK else short
