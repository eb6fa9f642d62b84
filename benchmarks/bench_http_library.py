"""Which HTTP library costs a client least?

Each candidate runs in a fresh process against the same loopback server: 2,000 small POSTs with all
of them in flight, then 200 POSTs of 512 KiB with 8 in flight. The measure is CPU seconds (user and
system) of the client process, and its peak resident memory; wall time is noise on a shared machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

SMALL_BODY = json.dumps({"prompt": {"chunks": [{"tokens": list(range(256))}]}}).encode()
LARGE_BODY = bytes(512 * 1024)
HEADERS = {"Content-Type": "application/json", "X-API-Key": "tml-benchmark"}

Post = Callable[[bytes], Awaitable[bytes]]
Close = Callable[[], Awaitable[object]]


async def make_httpx2(url: str) -> tuple[Post, Close]:
    import httpx2 as httpx

    limits = httpx.Limits(max_connections=1000, max_keepalive_connections=1000)
    client = httpx.AsyncClient(limits=limits, timeout=None)

    async def post(body: bytes) -> bytes:
        return bytes((await client.post(url, content=body, headers=HEADERS)).content)

    return post, client.aclose


async def make_pyqwest(url: str) -> tuple[Post, Close]:
    import pyqwest

    client = pyqwest.Client(pyqwest.HTTPTransport())

    async def post(body: bytes) -> bytes:
        return bytes((await client.post(url, headers=HEADERS, content=body)).content)

    return post, nothing_to_close


async def make_aiohttp(url: str) -> tuple[Post, Close]:
    import aiohttp

    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1000))

    async def post(body: bytes) -> bytes:
        async with session.post(url, data=body, headers=HEADERS) as answer:
            return await answer.read()

    return post, session.close


async def nothing_to_close() -> None:
    """pyqwest's clients close with the process."""


MAKERS = {"httpx2": make_httpx2, "pyqwest": make_pyqwest, "aiohttp": make_aiohttp}


async def burst(post: Post, body: bytes, count: int, in_flight: int) -> None:
    gate = asyncio.Semaphore(in_flight)

    async def one() -> None:
        async with gate:
            assert b"request_id" in await post(body)

    await asyncio.gather(*(one() for _ in range(count)))


async def measure(name: str, url: str) -> dict[str, float]:
    before_import = time.process_time()
    post, close = await MAKERS[name](url)
    start = time.process_time()
    await burst(post, SMALL_BODY, 2000, 2000)
    small = time.process_time()
    await burst(post, LARGE_BODY, 200, 8)
    large = time.process_time()
    await close()
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "import_s": start - before_import,
        "small_s": small - start,
        "large_s": large - small,
        "peak_mib": peak_mib,
    }


def run_candidate(name: str, url: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--candidate", name, "--url", url]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))


def compare(rounds: int) -> dict[str, dict[str, float]]:
    server_path = Path(__file__).with_name("_echo_server.py")
    server = subprocess.Popen(
        [sys.executable, str(server_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert server.stdout is not None
    assert server.stdin is not None
    url = f"http://127.0.0.1:{int(server.stdout.readline())}/api/v1/asample"
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in MAKERS}
    for _ in range(rounds):
        for name in MAKERS:
            runs[name].append(run_candidate(name, url))
    server.stdin.close()
    server.wait()
    return {
        name: {key: round(statistics.median(r[key] for r in many), 3) for key in many[0]}
        for name, many in runs.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--candidate", choices=list(MAKERS))
    parser.add_argument("--url")
    options = parser.parse_args()
    if options.candidate:
        print(json.dumps(asyncio.run(measure(options.candidate, options.url))))
    else:
        print(json.dumps({"question": "http library", "medians": compare(options.rounds)}))


if __name__ == "__main__":
    main()
