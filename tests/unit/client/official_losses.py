"""Has the official client create every custom loss of `losses`: `python -m ... <base url>`.

Run in a process of its own, since that client leaves sockets open.
"""

from __future__ import annotations

import sys

import tinker

from tests.unit.client import losses

if __name__ == "__main__":
    service = tinker.ServiceClient(base_url=sys.argv[1], api_key="tml-a")
    for fn, ranks in losses.TRACEABLE:
        service.create_custom_loss(fn, ranks).result(20)
    service.close("success").result(20)
