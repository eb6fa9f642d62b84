"""Messages arrive whole and in order, however they were cut on their way."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from tinkex.engine.process.frames import FrameReader, write_frame


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        yield near, far


def framed(body: bytes) -> bytes:
    return struct.pack(">Q", len(body)) + body


def received(far: socket.socket) -> list[bytes]:
    frames, found = FrameReader(far), []
    while (frame := frames.next()) is not None:
        found.append(frame)
    return found


def test_messages_of_all_sizes_come_as_they_were_sent(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    near, far = pair
    chance = random.Random(1)
    sizes = [0, 1, 7, 8, 9, 65_527, 65_528, 65_529, 65_536, 131_072, 3_000_000, 5, 0]
    sent = [chance.randbytes(size) for size in sizes]

    def send() -> None:
        for body in sent:
            write_frame(near, body)
        near.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=send)
    thread.start()
    assert received(far) == sent
    thread.join()


@pytest.mark.parametrize("seed", range(20))
def test_messages_cut_anywhere_come_whole(
    pair: tuple[socket.socket, socket.socket], seed: int
) -> None:
    near, far = pair
    chance = random.Random(seed)
    sent = [chance.randbytes(chance.choice([0, 3, 500, 70_000])) for _ in range(12)]
    stream = b"".join(map(framed, sent))

    def send() -> None:
        at = 0
        while at < len(stream):
            step = chance.choice([1, 5, 9, 1_000, 65_536, 100_000])
            near.sendall(stream[at : at + step])
            at += step
        near.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=send)
    thread.start()
    assert received(far) == sent
    thread.join()


@pytest.mark.parametrize("kept", [0, 4, 8, 11])
def test_half_a_message_is_none(pair: tuple[socket.socket, socket.socket], kept: int) -> None:
    near, far = pair
    near.sendall(framed(b"first") + framed(b"second")[:kept])
    near.shutdown(socket.SHUT_WR)
    assert received(far) == [b"first"]


def test_a_connection_that_breaks_is_the_end(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    near.close()
    assert FrameReader(far).next() is None
    far.close()
    assert FrameReader(far).next() is None
