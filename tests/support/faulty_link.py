"""A TCP connection that can be cut, stalled, left half-open or refused, whatever is spoken on it.

with FaultyLink(("127.0.0.1", 8001)) as link:
    ...  # connect to link.port
    link.stall()
    link.heal()
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.support.tcp_listener import Target, TcpListener, pass_on, reset

__all__ = ["FaultyLink"]


class FaultyLink(TcpListener):
    """Passes bytes between those who connect and one target. Its methods may be called from any
    thread; each returns once it has taken effect."""

    def __init__(self, target: Target) -> None:
        super().__init__("faulty-link")
        self._target = target
        self._pairs: set[_Pair] = set()
        self._is_refusing = False
        self._to_target, self._to_caller = asyncio.Event(), asyncio.Event()
        self._to_target.set()
        self._to_caller.set()

    def cut(self) -> None:
        """Resets all connections at both ends; new ones are made as before."""
        self._now(self._cut)

    def stall(self, *, to_target: bool = True, to_caller: bool = True) -> None:
        """Bytes of these ways wait, also those of new connections, until `heal`."""

        def stall() -> None:
            if to_target:
                self._to_target.clear()
            if to_caller:
                self._to_caller.clear()

        self._now(stall)

    def leave_half_open(self, *, caller_is_gone: bool) -> None:
        """One end of each connection is reset; the other hears nothing more until `heal`."""

        def leave() -> None:
            for pair in self._pairs:
                pair.leave_half_open(caller_is_gone=caller_is_gone)

        self._now(leave)

    def refuse(self) -> None:
        """Cuts all connections and makes no new ones until `heal`."""

        def refuse() -> None:
            self._is_refusing = True
            self._cut()

        self._now(refuse)

    def heal(self) -> None:
        """Ends whatever is wrong: what waited flows on, and half-open connections are reset."""

        def heal() -> None:
            self._is_refusing = False
            self._to_target.set()
            self._to_caller.set()
            for pair in self._pairs:
                if pair.is_half_open:
                    pair.reset()

        self._now(heal)

    def _cut(self) -> None:
        for pair in self._pairs:
            pair.reset()

    def _now(self, act: Callable[[], None]) -> None:
        async def run() -> None:
            act()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_refusing:
            reset(writer)
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            reset(writer)
            return
        pair = _Pair(writer, far_writer)
        self._pairs.add(pair)
        ways = [
            asyncio.create_task(pass_on(reader, far_writer, self._to_target)),
            asyncio.create_task(pass_on(far_reader, writer, self._to_caller)),
        ]
        try:
            await asyncio.wait(
                [*ways, asyncio.create_task(pair.is_over.wait())],
                return_when=asyncio.FIRST_COMPLETED,
            )
            for way in ways:
                way.cancel()
            if pair.is_half_open:
                await pair.is_over.wait()
        finally:
            pair.reset()
            self._pairs.discard(pair)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._begin(self._carry(reader, writer))


class _Pair:
    """The two connections of one caller: to it and to the target."""

    def __init__(self, caller: asyncio.StreamWriter, target: asyncio.StreamWriter) -> None:
        self._caller, self._target = caller, target
        self.is_over = asyncio.Event()
        self.is_half_open = False

    def reset(self) -> None:
        """Both ends get a reset."""
        reset(self._caller)
        reset(self._target)
        self.is_over.set()

    def leave_half_open(self, *, caller_is_gone: bool) -> None:
        """One end gets a reset, the other nothing."""
        self.is_half_open = True
        reset(self._caller if caller_is_gone else self._target)
