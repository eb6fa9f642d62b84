"""What goes wrong on a network, each as one act on an exchange, and a seeded choice among them.

Every act keeps HTTP's rules towards both sides but for the one thing it spoils. The choice for the
n-th request of a route depends on the seed, the route and n alone, so a seed gives the same faults
in every run, whatever the timing.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from tests.support.fault_proxy import Act, Exchange, Message

SLOWLY = 1000.0  # bytes a second
LONGEST_CRAWL_S = 2.0
BAD_GATEWAY = b"<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"


async def untouched(it: Exchange) -> None:
    """Nothing goes wrong."""
    await it.client.write((await it.forward()).whole)


async def late_request(it: Exchange) -> None:
    """The request takes long to arrive; others overtake it."""
    await asyncio.sleep(it.dice.uniform(0.05, 1.0))
    await untouched(it)


async def late_answer(it: Exchange) -> None:
    """The answer takes long."""
    answer = await it.forward()
    await asyncio.sleep(it.dice.uniform(0.05, 1.0))
    await it.client.write(answer.whole)


async def overtaken(it: Exchange) -> None:
    """The request waits until some of other connections have passed it."""
    goal = it.proxy.passed_on + it.dice.randint(1, 5)
    for _ in range(100):
        if it.proxy.passed_on >= goal:
            break
        await asyncio.sleep(0.01)
    await untouched(it)


async def dropped(it: Exchange) -> None:
    """The connection ends before the server saw anything."""
    it.cut()


async def swallowed(it: Exchange) -> None:
    """The request vanishes, and the connection ends only later."""
    await asyncio.sleep(it.dice.uniform(0.2, 1.0))
    it.cut()


async def torn_request(it: Exchange) -> None:
    """The server gets a part of the request and then the connection's end."""
    server = await it.upstream.side()
    await server.write(it.request.whole[: it.dice.randrange(1, len(it.request.whole))])
    await asyncio.sleep(it.dice.uniform(0.0, 0.05))
    it.upstream.close(is_reset=it.dice.random() < 0.5)
    it.cut()


async def lost_answer(it: Exchange) -> None:
    """The server answers, and the client never hears of it."""
    await it.forward()
    it.cut()


async def left_alone(it: Exchange) -> None:
    """Both connections end while the server is at work."""
    server = await it.upstream.side()
    await server.write(it.request.whole)
    it.upstream.close()
    it.cut()


async def torn_answer(it: Exchange) -> None:
    """The client gets a part of the answer and then the connection's end."""
    answer = (await it.forward()).whole
    await it.client.write(answer[: it.dice.randrange(1, len(answer))])
    it.cut()


async def half_closed_to_server(it: Exchange) -> None:
    """The client's side of the server's connection closes after the request."""
    server = await it.upstream.side()
    await server.write(it.request.whole)
    server.end_writing()
    answer = await it.answer()
    it.upstream.close()
    await it.client.write(answer.whole)


async def half_closed_to_client(it: Exchange) -> None:
    """The answer comes whole, and with it the end of the server's side."""
    await it.client.write((await it.forward()).whole)
    it.client.end_writing()
    await it.client.rest()


async def doubled(it: Exchange) -> None:
    """The whole request arrives twice at once; the client gets one of the answers."""
    answers = await asyncio.gather(it.forward(), it.again())
    await it.client.write(it.dice.choice(answers).whole)


async def echoed(it: Exchange) -> None:
    """The whole request arrives again, long after it was answered."""

    async def repeat() -> None:
        await asyncio.sleep(it.dice.uniform(0.1, 5.0))
        await it.again()

    await untouched(it)
    it.proxy.later(repeat())


async def crawling_request(it: Exchange) -> None:
    """The request arrives at 1 kB/s."""
    server = await it.upstream.side()
    await server.crawl(it.request.whole, bytes_per_s=SLOWLY, longest_s=LONGEST_CRAWL_S)
    await it.client.write((await it.answer()).whole)


async def crawling_answer(it: Exchange) -> None:
    """The answer arrives at 1 kB/s."""
    answer = (await it.forward()).whole
    await it.client.crawl(answer, bytes_per_s=SLOWLY, longest_s=LONGEST_CRAWL_S)


async def slow_headers(it: Exchange) -> None:
    """The request's head arrives a few bytes at a time, its body at once."""
    server = await it.upstream.side()
    await server.crawl(it.request.head, bytes_per_s=SLOWLY / 4, longest_s=LONGEST_CRAWL_S)
    await server.write(it.request.body)
    await it.client.write((await it.answer()).whole)


async def bad_gateway(it: Exchange) -> None:
    """Something in between answers 502, whether or not the server got the request."""
    if it.dice.random() < 0.5:
        await it.forward()
    await it.client.write(_page(502, "Bad Gateway").whole)


FAULTS: tuple[Act, ...] = (
    late_request,
    late_answer,
    overtaken,
    dropped,
    swallowed,
    torn_request,
    lost_answer,
    left_alone,
    torn_answer,
    half_closed_to_server,
    half_closed_to_client,
    doubled,
    echoed,
    crawling_request,
    crawling_answer,
    slow_headers,
    bad_gateway,
)


class SeededPlan:
    """Spoils a share of the requests, each kind of fault as often as every other."""

    def __init__(self, seed: int, *, share: float = 0.15) -> None:
        self._seed = seed
        self._share = share
        self._seen: Counter[str] = Counter()

    def draw(self, route: str) -> tuple[str, random.Random, Act]:
        """What happens to the next request of this route."""
        self._seen[route] += 1
        dice = random.Random(f"{self._seed}/{route}/{self._seen[route]}")
        act = dice.choice(FAULTS) if dice.random() < self._share else untouched
        return act.__name__, dice, act


def _page(status: int, phrase: str) -> Message:
    head = (
        f"HTTP/1.1 {status} {phrase}\r\nContent-Type: text/html\r\n"
        f"Content-Length: {len(BAD_GATEWAY)}\r\n\r\n"
    )
    return Message(head.encode(), BAD_GATEWAY)
