"""Waking up: quick, complete, and only for the owner."""

from __future__ import annotations

import asyncio
import threading
import time

from tinkex.server.result_waiters import Waiters, wait_for
from tinkex.store.results import Result

DONE = Result(encoding="json", body=b"{}")


def test_a_publication_from_a_thread_wakes_within_20_ms() -> None:
    async def scene() -> float:
        waiters = Waiters()
        published: list[float] = []

        def publish() -> None:
            published.append(time.monotonic())
            waiters.publish({"a": DONE}, set())

        with waiters.watch("a") as future:
            threading.Timer(0.05, publish).start()
            assert await wait_for(future, 5.0) == DONE
            return time.monotonic() - published[0]

    assert min(asyncio.run(scene()) for _ in range(3)) < 0.02


def test_a_result_wakes_only_its_own_waiters() -> None:
    async def scene() -> None:
        waiters = Waiters()
        with waiters.watch("a") as mine, waiters.watch("b") as other:
            waiters.publish({"b": DONE}, set())
            assert await wait_for(other, 1.0) == DONE
            assert await wait_for(mine, 0.01) is None

    asyncio.run(scene())


def test_one_result_is_not_published_after_another_tenants_many() -> None:
    async def scene() -> list[str]:
        waiters = Waiters()
        reported: list[str] = []
        names = [*(f"greedy{n}" for n in range(20)), "polite", "unknown", *("greedy20", "greedy21")]
        for name in names:
            if name != "unknown":
                waiters.expect(name, name.rstrip("0123456789"), "sample")

        async def poll(name: str) -> None:
            with waiters.watch(name) as future:
                await wait_for(future, 5.0)
                reported.append(name)

        polls = [asyncio.create_task(poll(name)) for name in names]
        await asyncio.sleep(0)
        waiters.publish(dict.fromkeys(names, DONE), set())
        await asyncio.gather(*polls)
        return reported

    reported = asyncio.run(scene())
    assert set(reported[:2]) == {"polite", "unknown"}
    assert reported[2:] == [f"greedy{n}" for n in range(22)], "one's own stay in order"


def test_closing_wakes_all_waiters() -> None:
    async def scene() -> None:
        waiters = Waiters()
        with waiters.watch("a") as future:
            waiters.close()
            assert future.done()
            assert await wait_for(future, 1.0) is None
        with waiters.watch("a") as late:
            assert late.done()

    asyncio.run(scene())


def test_results_are_known_to_their_owner_until_they_are_dropped() -> None:
    async def scene() -> None:
        waiters = Waiters(max_bytes=2_000)
        for number in range(5):
            waiters.expect(f"r{number}", "alice", "optim_step")
            waiters.publish({f"r{number}": DONE}, set())
        await asyncio.sleep(0.01)
        assert waiters.find("alice", "r0") is None, "dropped: the store knows it"
        newest = waiters.find("alice", "r4")
        assert newest is not None
        assert newest.result == DONE
        assert waiters.find("bob", "r4") is None
        waiters.expect("r9", "alice", "sample")
        unfinished = waiters.find("alice", "r9")
        assert unfinished is not None
        assert not unfinished.is_finished

    asyncio.run(scene())
