"""The scripted loopback server as a process of its own, for benchmarks of clients.

Prints its base URL and serves until its standard input closes. Options are JSON for
`LoopbackServer`, e.g. `python -m benchmarks._loopback '{"flags": {"fwdbwd_max_chunk_len": 64}}'`.
Requests are counted, not kept: a benchmark's bodies would fill the memory.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

from tests.support.http_server import Fault, Request
from tests.support.loopback import LoopbackServer
from tests.support.protocol import decode, route_of


class CountingServer(LoopbackServer):
    """A loopback server that keeps no request."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.counted: Counter[str] = Counter()

    def on_head(self, request: Request) -> Fault | None:
        """Injects no faults; only records the route."""
        request.route, _ = route_of(request)
        self.counted[request.route] += 1
        return None

    def on_request(self, request: Request) -> Fault:
        """Injects no faults."""
        request.decoded = decode(request)
        return _PROPER


_PROPER = Fault()


def main() -> None:
    """Serves until stdin closes; then prints the request counts on stderr."""
    options = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    with CountingServer(**options) as server:
        print(server.url, flush=True)
        sys.stdin.read()
        print(json.dumps(server.counted), file=sys.stderr)


if __name__ == "__main__":
    main()
