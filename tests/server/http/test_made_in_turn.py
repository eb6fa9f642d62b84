"""Answers that make their pieces one at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from starlette.responses import StreamingResponse

from tinkex.server.http.made_in_turn import made_in_turn


class Pieces:
    """Makes pieces and counts how many are being made at the same moment."""

    def __init__(self) -> None:
        self.running = 0
        self.most = 0

    def make(self, name: str) -> Iterator[bytes]:
        for number in range(3):
            self.running += 1
            self.most = max(self.most, self.running)
            time.sleep(0.002)  # long enough for another thread to begin one
            self.running -= 1
            yield f"{name}{number}".encode()


async def read(answer: StreamingResponse, into: list[bytes]) -> None:
    async for piece in answer.body_iterator:
        into.append(bytes(piece))  # type: ignore[arg-type]


async def read_all(pieces: Pieces, lock: asyncio.Semaphore | None) -> list[list[bytes]]:
    answers = [StreamingResponse(pieces.make(name)) for name in "abcd"]
    if lock is not None:
        answers = [made_in_turn(answer, lock) for answer in answers]
    got: list[list[bytes]] = [[] for _ in answers]
    await asyncio.gather(*(read(*each) for each in zip(answers, got, strict=True)))
    return got


def test_pieces_are_made_one_at_a_time_and_arrive_whole() -> None:
    async def run() -> tuple[list[list[bytes]], int, int]:
        paced, free = Pieces(), Pieces()
        got = await read_all(paced, asyncio.Semaphore(1))
        await read_all(free, None)
        return got, paced.most, free.most

    got, most, most_without = asyncio.run(run())
    assert got == [[f"{name}{n}".encode() for n in range(3)] for name in "abcd"]
    assert most == 1
    assert most_without > 1, "without the lock they would be made side by side"


def test_a_reader_that_stops_reading_delays_no_other() -> None:
    async def run() -> list[bytes]:
        lock, got = asyncio.Semaphore(1), []
        slow = made_in_turn(StreamingResponse(iter([b"1", b"2"])), lock)
        await anext(aiter(slow.body_iterator))
        await read(made_in_turn(StreamingResponse(iter([b"x", b"y"])), lock), got)
        return got

    assert asyncio.run(run()) == [b"x", b"y"]
