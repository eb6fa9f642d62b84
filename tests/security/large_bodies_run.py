"""What other clients see while one tenant sends large bodies that are refused.

    python -m tests.security.large_bodies_run [number of bodies at once]

Prints the median and the worst time of small requests of another tenant and of /healthz, alone and
during the bodies, and how much memory the server took at most. The bodies come from processes of
their own, so that the clients that are timed have theirs to themselves.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from tests.security.campaign import memory_bytes
from tests.server.driving import Http, null_config
from tests.support.keys import new_tenant_key
from tinkex.server.embedded import EmbeddedServer

NUM_KEYS = 2_000_000
NUM_BODIES = 5
PAUSE_S = 0.01


SENDER = """
import http.client, sys
host, key, file, count = sys.argv[1:]
body = open(file, "rb").read()
for _ in range(int(count)):
    connection = http.client.HTTPConnection(host, timeout=120)
    try:
        connection.request("POST", "/api/v1/create_session", body, {"X-API-Key": key})
        print(len(body), "bytes:", connection.getresponse().status, flush=True)
    except OSError as error:
        print(len(body), "bytes:", repr(error), flush=True)
    connection.close()
"""


def body() -> bytes:
    """A session whose metadata has millions of keys."""
    entries = b",".join(b'"k%d":%d' % (n, n % 10) for n in range(NUM_KEYS))
    return b'{"tags":[],"sdk_version":"1","user_metadata":{' + entries + b"}}"


def timed(ask: Callable[[], object], is_over: threading.Event, times_s: list[float]) -> None:
    """Asks again and again, and notes how long each answer took."""
    while not is_over.is_set():
        began = time.perf_counter()
        ask()
        times_s.append(time.perf_counter() - began)
        time.sleep(PAUSE_S)


def measure(server: EmbeddedServer, other_key: str, work: Callable[[], None]) -> None:
    """Prints what others see while `work` runs."""
    is_over = threading.Event()
    calls_s: list[float] = []
    health_s: list[float] = []
    memory: list[int] = []

    with httpx.Client(base_url=server.base_url, timeout=120) as client:
        other = Http(client, other_key)
        asks: list[tuple[Callable[[], object], list[float]]] = [
            (lambda: other.get("sessions"), calls_s),
            (lambda: client.get("/healthz"), health_s),
            (lambda: memory.append(memory_bytes(server)), []),
        ]
        threads = [threading.Thread(target=timed, args=(ask, is_over, each)) for ask, each in asks]
        for thread in threads:
            thread.start()
        work()
        is_over.set()
        for thread in threads:
            thread.join()
    for name, times in (("small requests", calls_s), ("/healthz", health_s)):
        median, worst = statistics.median(times) * 1e3, max(times) * 1e3
        print(f"  {name}: median {median:.1f} ms, worst {worst:.0f} ms ({len(times)} answers)")
    print(f"  server memory: {max(memory) / 1e6:.0f} MB at most")


def run_senders(server: EmbeddedServer, file: Path, at_once: int) -> None:
    """Has this many processes send the body, again and again."""
    host = server.base_url.removeprefix("http://")
    command = [sys.executable, "-c", SENDER, host, server.api_key, str(file), str(NUM_BODIES)]
    senders = [subprocess.Popen(command) for _ in range(at_once)]
    for sender in senders:
        sender.wait()


def main(at_once: int) -> None:
    """Runs it."""
    with (
        tempfile.TemporaryDirectory() as name,
        EmbeddedServer(null_config(Path(name))) as server,
    ):
        other_key = new_tenant_key(Path(name))
        file = Path(name) / "body.json"
        file.write_bytes(body())
        print("alone")
        measure(server, other_key, lambda: time.sleep(3))
        print(f"beside {at_once} that send large bodies")
        measure(server, other_key, lambda: run_senders(server, file, at_once))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8)
