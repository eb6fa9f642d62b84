"""Gates and budgets: the limiter after a 429, bytes under way, places in the order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clock import FakeClock
from tests.unit.client.steady import steady
from tinkex.client.budget import ByteBudget
from tinkex.client.limiter import RateLimiter
from tinkex.client.ordering import Order, SendSlot
from tinkex.client.registry import Registry
from tinkex.errors import ClientClosedError

Work = Callable[[], Coroutine[Any, Any, Any]]


async def settled() -> None:
    """Lets everything that can go on go on."""
    for _ in range(20):
        await asyncio.sleep(0)


# The limiter.


def test_without_a_429_everything_passes() -> None:
    limiter = RateLimiter(FakeClock())
    assert limiter.backoff_until is None
    assert not limiter.is_limited
    asyncio.run(asyncio.wait_for(limiter.wait(), 1))


def test_a_429_without_a_figure_closes_nothing() -> None:
    limiter = RateLimiter(FakeClock())
    limiter.hold(None)
    assert not limiter.is_limited


def test_the_gate_opens_by_itself() -> None:
    clock = FakeClock()
    limiter = RateLimiter(clock)
    limiter.hold(5)
    assert limiter.backoff_until == clock.monotonic() + 5
    clock.advance(4.9)
    assert limiter.is_limited
    clock.advance(0.1)
    assert not limiter.is_limited


@steady
@given(st.lists(st.tuples(st.floats(0.01, 100), st.floats(0, 50)), min_size=1, max_size=20))
def test_the_deadline_only_moves_forward(steps: list[tuple[float, float]]) -> None:
    clock = FakeClock()
    limiter = RateLimiter(clock)
    latest = 0.0
    for wait, pause in steps:
        limiter.hold(wait)
        latest = max(latest, clock.monotonic() + wait)
        deadline = limiter.backoff_until
        assert deadline == (latest if latest > clock.monotonic() else None)
        clock.advance(pause)


def test_only_a_success_that_began_after_the_429_opens_the_gate() -> None:
    clock = FakeClock()
    limiter = RateLimiter(clock)
    before = clock.monotonic()
    clock.advance(1)
    limiter.hold(30)
    limiter.note_success(before)
    assert limiter.is_limited
    limiter.note_success(clock.monotonic())
    assert limiter.is_limited, "one that began in the same moment proves nothing"
    clock.advance(0.1)
    limiter.note_success(clock.monotonic())
    assert not limiter.is_limited


def test_those_who_waited_look_again() -> None:
    """A gate that closes anew while they sleep keeps them."""
    clock = FakeClock()
    limiter = RateLimiter(clock)
    passed: list[float] = []

    async def waiter() -> None:
        await limiter.wait()
        passed.append(clock.monotonic())

    async def run() -> None:
        limiter.hold(5)
        waiters = [asyncio.create_task(waiter()) for _ in range(3)]
        await settled()
        limiter.hold(8)
        clock.advance(5)
        await settled()
        assert passed == []
        clock.advance(3)
        await asyncio.gather(*waiters)

    began = clock.monotonic()
    asyncio.run(run())
    assert passed == [began + 8] * 3


# Budgets.


def test_work_passes_while_it_fits_first_come_first_served() -> None:
    budget = ByteBudget(10)
    order: list[str] = []

    async def work(name: str, size: int, release: asyncio.Event) -> None:
        async with budget.hold(size):
            order.append(name)
            await release.wait()

    async def run() -> None:
        first, rest = asyncio.Event(), asyncio.Event()
        rest.set()
        tasks = [
            asyncio.create_task(work("a", 6, first)),
            asyncio.create_task(work("b", 8, rest)),
            asyncio.create_task(work("c", 1, rest)),  # would fit, but came later
        ]
        await settled()
        assert order == ["a"]
        assert budget.used_bytes == 6
        first.set()
        await asyncio.gather(*tasks)
        assert order == ["a", "b", "c"]
        assert budget.used_bytes == 0

    asyncio.run(run())


def test_what_is_larger_than_the_budget_passes_alone() -> None:
    budget = ByteBudget(10)

    async def run() -> None:
        async with budget.hold(1000):
            assert budget.used_bytes == 10
        assert budget.used_bytes == 0

    asyncio.run(run())


@steady
@given(st.lists(st.tuples(st.integers(0, 15), st.booleans()), max_size=25), st.randoms())
def test_a_cancelled_request_returns_its_budget(
    pieces: list[tuple[int, bool]], random: Any
) -> None:
    budget, high_water = ByteBudget(10), []

    async def work(size: int) -> None:
        async with budget.hold(size):
            high_water.append(budget.used_bytes)
            await asyncio.sleep(0)

    async def run() -> None:
        tasks = [(asyncio.create_task(work(size)), dropped) for size, dropped in pieces]
        for task, dropped in tasks:
            if dropped:
                task.cancel()
            if random.random() < 0.5:
                await asyncio.sleep(0)
        await asyncio.wait_for(
            asyncio.gather(*(task for task, _ in tasks), return_exceptions=True), 5
        )

    asyncio.run(run())
    assert budget.used_bytes == 0
    assert all(used <= 10 for used in high_water)


def test_a_cancelled_wait_that_was_just_served_gives_its_share_back() -> None:
    budget = ByteBudget(10)

    async def run() -> None:
        blocker = asyncio.Event()

        async def hold(size: int) -> None:
            async with budget.hold(size):
                await blocker.wait()

        first = asyncio.create_task(hold(10))
        await settled()
        second = asyncio.create_task(hold(10))
        await settled()
        first.cancel()
        await asyncio.sleep(0)  # the first has left and passed its bytes on
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        assert budget.used_bytes == 0

    asyncio.run(run())


# Places in the order.


def test_numbers_are_dense_and_in_the_order_of_the_slots_across_threads() -> None:
    order, lock = Order(), threading.Lock()
    slots: list[tuple[SendSlot, int]] = []

    def take() -> None:
        for count in (1, 3, 0, 2):
            with lock:
                slots.append((order.take(), count))

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    async def number(slot: SendSlot, count: int) -> list[int]:
        await slot.wait()
        first = slot.numbers(count) if count else 0
        slot.release()
        return list(range(first, first + count))

    async def run() -> list[list[int]]:
        return await asyncio.gather(*(number(slot, count) for slot, count in slots))

    assert [each for numbers in asyncio.run(run()) for each in numbers] == list(range(1, 49))


def test_two_slots_have_no_other_between_them() -> None:
    order, pairs, lock = Order(), [], threading.Lock()

    def take() -> None:
        for _ in range(50):
            pair = order.take_two()
            order.take()
            with lock:
                pairs.append(pair)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(second._before is first for first, second in pairs)


def test_send_slots_come_one_after_the_other() -> None:
    order, served = Order(), []

    async def run() -> None:
        turns = [order.take() for _ in range(4)]

        async def use(place: int) -> None:
            await turns[place].wait()
            served.append(place)
            await asyncio.sleep(0)
            turns[place].release()

        await asyncio.gather(*(use(place) for place in (3, 1, 0, 2)))

    asyncio.run(run())
    assert served == [0, 1, 2, 3]


def test_the_child_of_a_fork_takes_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    order = Order()
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(ClientClosedError, match="fork"):
        order.take()


# The registry.


def test_an_entry_is_made_once_across_threads() -> None:
    registry, made, found = Registry(), [], []

    def make() -> object:
        made.append(1)
        return object()

    threads = [
        threading.Thread(target=lambda: found.append(registry.get_or_create("key", make)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert len(set(map(id, found))) == 1


def test_entries_are_written_read_and_forgotten() -> None:
    registry = Registry()
    registry.put(("config", "a"), 1)
    assert registry.lookup(("config", "a")) == 1
    assert registry.keys() == [("config", "a")]
    registry.remove(("config", "a"))
    registry.remove(("config", "a"))
    assert registry.lookup(("config", "a")) is None
