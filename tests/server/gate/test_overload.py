"""What a server does with more submissions than it can answer in time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.server.gate.owner_keys import OwnerKeys
from tinkex.scheduler.scheduler import Progress
from tinkex.server.gate.admission import Admission
from tinkex.server.gate.auth import Keyring
from tinkex.server.gate.concurrency_limit import ConcurrencyLimit
from tinkex.server.gate.gate import Gate
from tinkex.server.gate.overload import SUBMISSIONS, Overload
from tinkex.server.gate.rate_limit import RateLimit
from tinkex.server.gate.signing import Signer
from tinkex.server.gate.signing_secret import SecretFile, ensure_secret_file
from tinkex.store import Database, keys
from tinkex.store.clock import steady_now
from tinkex.wire.limits import DEFAULT_LIMITS

TARGET_S = 0.05


def fill(limit: ConcurrencyLimit, who: str, count: int) -> None:
    for _ in range(count):
        limit.enter(who)


def test_a_full_limit_admits_keys_that_have_no_request_in_flight() -> None:
    limit = ConcurrencyLimit(TARGET_S, least=4, most=8)
    fill(limit, "greedy", limit.limit)
    assert not limit.admits("greedy")
    assert limit.admits("polite")


def test_keys_without_requests_in_flight_are_admitted_up_to_twice_the_limit() -> None:
    limit = ConcurrencyLimit(TARGET_S, least=4, most=8)
    for number in range(2 * limit.limit):
        assert limit.admits(f"stranger {number}")
        limit.enter(f"stranger {number}")
    assert not limit.admits("one more")


def work(limit: ConcurrencyLimit, count: int, *, took_s: float, now: float) -> None:
    fill(limit, "a", count)
    for _ in range(count):
        limit.leave("a", took_s, now)


def test_the_limit_shrinks_while_even_the_fastest_is_slow_but_not_below_its_minimum() -> None:
    limit = ConcurrencyLimit(TARGET_S, least=4, most=100)
    sizes = []
    for tenth in range(100):
        work(limit, limit.limit, took_s=2 * TARGET_S, now=tenth / 10)
        sizes.append(limit.limit)
    assert sizes[9] == 100, "a burst of a second changes nothing"
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 4


def test_a_burst_that_passes_changes_nothing() -> None:
    limit = ConcurrencyLimit(TARGET_S, least=4, most=100)
    for tenth in range(100):
        is_slow = tenth % 10 != 0
        work(limit, 100, took_s=2 * TARGET_S if is_slow else TARGET_S / 2, now=tenth / 10)
    assert limit.limit == 100


def test_one_quick_submission_shows_that_there_is_no_standing_queue() -> None:
    limit = ConcurrencyLimit(TARGET_S, least=4, most=100)
    for tenth in range(100):
        fill(limit, "a", 3)
        limit.leave("a", 1.0, tenth / 10 - 0.02)
        limit.leave("a", TARGET_S / 10, tenth / 10 - 0.01)
        limit.leave("a", 1.0, tenth / 10)
    assert limit.limit == 100


def test_the_limit_grows_again_when_it_is_used_up_and_requests_are_fast() -> None:
    limit = ConcurrencyLimit(TARGET_S, least=4, most=100)
    for tenth in range(100):
        work(limit, limit.limit, took_s=2 * TARGET_S, now=tenth / 10)
    work(limit, 3, took_s=TARGET_S / 10, now=11.0)
    work(limit, 3, took_s=TARGET_S / 10, now=11.2)
    assert limit.limit < 8, "an unused limit need not grow"
    for tenth in range(120, 300):
        work(limit, limit.limit, took_s=TARGET_S / 10, now=tenth / 10)
    assert limit.limit == 100


class Work:
    """A scheduler's progress, told by the test."""

    def __init__(self) -> None:
        self.now = Progress(num_ready=0, num_finished=0, busy_seconds=0.0)

    def look(self) -> Progress:
        return self.now

    def go_on(self, *, ready: int, finished: int = 0, busy_seconds: float = 0.0) -> None:
        self.now = Progress(
            num_ready=ready,
            num_finished=self.now.num_finished + finished,
            busy_seconds=self.now.busy_seconds + busy_seconds,
        )


def admitted(rate: RateLimit, now: float, counts: dict[str, int]) -> Counter[str]:
    """How many of each tenant's submissions are let in, if they come in turn."""
    found: Counter[str] = Counter()
    for turn in range(max(counts.values())):
        for who, count in counts.items():
            found[who] += turn < count and rate.admits(who, now)
    return found


def pass_seconds(rate: RateLimit, work: Work, seconds: float, **each_tenth: Any) -> float:
    """The time after so long, every tenth of a second like the others."""
    now = 100.0
    for tenth in range(round(10 * seconds)):
        now = 100.0 + tenth / 10 + tenth * 1e-6
        rate.admits("any", now)
        work.go_on(**each_tenth)
    return now + 0.1 + 1e-6


def test_when_the_server_is_behind_only_as_many_come_in_as_get_done() -> None:
    rate = RateLimit((work := Work()).look)
    now = pass_seconds(rate, work, 10, ready=1000, finished=20)
    assert 18 <= admitted(rate, now, {"a": 500})["a"] <= 20


def test_those_on_their_way_in_count_as_waiting() -> None:
    rate = RateLimit((work := Work()).look, in_flight=lambda: 200)
    now = pass_seconds(rate, work, 10, ready=100, finished=20)
    assert 18 <= admitted(rate, now, {"a": 500})["a"] <= 20


def test_after_a_flood_it_stays_tight_for_a_second_and_fills_up_what_ran_out() -> None:
    rate = RateLimit((work := Work()).look)
    now = pass_seconds(rate, work, 10, ready=1000, finished=20)
    found = []
    for _ in range(15):
        work.go_on(ready=28, finished=20)
        found.append(admitted(rate, now, {"a": 500})["a"])
        now += 0.1001
    assert all(68 <= count <= 72 for count in found[:9]), "20 get done, 100 are missing"
    assert found[-1] == 500


def test_a_few_that_wait_are_no_overload() -> None:
    rate = RateLimit((work := Work()).look)
    now = pass_seconds(rate, work, 10, ready=100, finished=20)
    assert admitted(rate, now, {"a": 500})["a"] == 500


def test_a_busy_engine_is_no_overload_however_much_waits_for_it() -> None:
    rate = RateLimit((work := Work()).look)
    now = pass_seconds(rate, work, 10, ready=20_000, finished=1, busy_seconds=0.09)
    assert admitted(rate, now, {"a": 500})["a"] == 500


def test_an_engine_whose_calls_outlast_many_looks_is_busy_all_the_while() -> None:
    rate = RateLimit((work := Work()).look)
    found = []
    for tenth in range(300):  # a call of 0.4 s ends in every fourth
        is_end = tenth % 4 == 3
        work.go_on(ready=20_000, finished=is_end, busy_seconds=0.4 * is_end)
        found.append(admitted(rate, 100 + 0.1001 * tenth, {"a": 500})["a"])
    assert set(found[50:]) == {500}


def test_an_engine_that_idles_most_of_the_time_is_not_what_work_waits_for() -> None:
    rate = RateLimit((work := Work()).look)
    now = pass_seconds(rate, work, 10, ready=1000, finished=20, busy_seconds=0.02)
    assert 18 <= admitted(rate, now, {"a": 500})["a"] <= 20


def test_the_pace_is_shared_out_among_those_who_ask() -> None:
    rate = RateLimit((work := Work()).look)
    now = pass_seconds(rate, work, 10, ready=1000, finished=20)
    admitted(rate, now, {"greedy": 500, "polite": 3})
    work.go_on(ready=1000, finished=20)
    found = admitted(rate, now + 0.11, {"greedy": 500, "polite": 3})
    assert found["polite"] == 3
    assert found["greedy"] <= 11


def test_who_comes_after_the_others_had_it_all_is_let_in_too() -> None:
    rate = RateLimit((work := Work()).look)
    now = pass_seconds(rate, work, 10, ready=1000, finished=20)
    admitted(rate, now, {"greedy": 500})
    work.go_on(ready=1000, finished=20)
    greedy = admitted(rate, now + 0.11, {"greedy": 500})["greedy"]
    assert greedy >= 18, "no other tenant sent any"
    assert admitted(rate, now + 0.12, {"polite": 1})["polite"] == 1
    crowd = admitted(rate, now + 0.13, {f"newcomer {n}": 1 for n in range(200)})
    assert sum(crowd.values()) <= greedy, "not all are"


def test_a_crowd_that_comes_again_in_a_second_is_let_in_as_fast_as_work_gets_done() -> None:
    rate, dice = RateLimit((work := Work()).look), random.Random(1)
    due = [100 + dice.random() for _ in range(2000)]
    let_in = 0
    for tenth in range(100):
        now = 100 + tenth * 0.1001
        work.go_on(ready=1000, finished=20)
        for tenant, at in enumerate(due):
            if at <= now:
                is_in = rate.admits(f"tenant {tenant}", now)
                let_in += is_in and tenth >= 50
                due[tenant] = now + dice.uniform(0.5, 1.5)  # what a refusal says
    assert let_in <= 1.1 * 50 * 20


def test_a_server_that_gets_nothing_done_still_takes_something_in() -> None:
    rate = RateLimit((work := Work()).look)
    now = pass_seconds(rate, work, 10, ready=1000, finished=0)
    assert admitted(rate, now, {"a": 500})["a"] == 1


def guarded(app: ASGIApp, limit: ConcurrencyLimit, ring: Keyring | None = None) -> Gate:
    """The application behind a limit."""
    overload = Overload(limit, RateLimit(Work().look))
    return Gate(app, ring or OwnerKeys(), Admission(DEFAULT_LIMITS), overload)


class Caller:
    """One request to an application, its messages in both directions in the test's hands."""

    def __init__(self, app: Any, path: str = min(SUBMISSIONS), key: str = "k") -> None:
        self.sent: list[Message] = []
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        headers = [(b"x-api-key", key.encode())]
        self._scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
        self.task = asyncio.create_task(app(self._scope, self._inbox.get, self._keep))

    async def _keep(self, message: Message) -> None:
        self.sent.append(message)

    async def body(self, *, is_last: bool = True) -> None:
        """Sends a piece of the body and lets the others run."""
        self._inbox.put_nowait({"type": "http.request", "body": b"x", "more_body": not is_last})
        await self.pause()

    @staticmethod
    async def pause() -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    @property
    def status(self) -> int | None:
        return self.sent[0]["status"] if self.sent else None

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])


class Inner:
    """An application that reads its request and answers when told."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        await self.go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def limit() -> ConcurrencyLimit:
    return ConcurrencyLimit(TARGET_S, least=1, most=2)


def test_a_submission_beyond_the_limit_is_refused_at_once_with_a_time_to_retry(
    limit: ConcurrencyLimit,
) -> None:
    async def scenario() -> None:
        app = guarded(inner := Inner(), limit)
        inside = [Caller(app) for _ in range(limit.limit)]
        for each in inside:
            await each.body()
        late = Caller(app)
        await late.pause()
        assert late.status == 429
        assert late.headers[b"retry-after"] == b"1"
        assert 500 <= int(late.headers[b"retry-after-ms"]) < 1500
        assert b"overloaded" in late.sent[1]["body"]
        inner.go.set()
        await asyncio.gather(*(each.task for each in inside))
        again = Caller(app)
        await again.body()
        assert again.status == 200

    asyncio.run(scenario())


def test_a_slow_upload_is_not_counted_until_it_is_whole(limit: ConcurrencyLimit) -> None:
    async def scenario() -> None:
        app = guarded(inner := Inner(), limit)
        slow = [Caller(app) for _ in range(10 * limit.limit)]
        for each in slow:
            await each.body(is_last=False)
        quick = Caller(app)
        await quick.body()
        inner.go.set()
        await quick.pause()
        assert quick.status == 200
        for each in slow:
            each.task.cancel()

    asyncio.run(scenario())


def test_an_application_that_fails_frees_its_slot(limit: ConcurrencyLimit) -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        raise RuntimeError("a bug")

    async def scenario() -> None:
        app = guarded(broken, limit)
        for _ in range(3 * limit.limit):
            failed = Caller(app)
            await failed.body()
            assert failed.task.done()
            assert isinstance(failed.task.exception(), RuntimeError)

    asyncio.run(scenario())


def test_polls_are_never_refused(limit: ConcurrencyLimit) -> None:
    async def scenario() -> None:
        app = guarded(inner := Inner(), limit)
        inside = [Caller(app) for _ in range(limit.limit)]
        for each in inside:
            await each.body()
        poll = Caller(app, path="/api/v1/retrieve_future")
        await poll.body()
        inner.go.set()
        await asyncio.gather(poll.task, *(each.task for each in inside))
        assert poll.status == 200

    asyncio.run(scenario())


def test_unknown_keys_are_refused_as_such_and_not_counted(limit: ConcurrencyLimit) -> None:
    async def scenario() -> None:
        app = guarded(inner := Inner(), limit)
        unknown = [Caller(app, key="unknown") for _ in range(5)]
        inside = [Caller(app, key="k") for _ in range(limit.limit)]
        for each in unknown + inside:
            await each.body()
        unknown += [Caller(app, key="unknown") for _ in range(5)]
        inner.go.set()
        await asyncio.gather(*(each.task for each in inside + unknown))
        assert {each.status for each in unknown} == {401}
        assert {each.status for each in inside} == {200}

    asyncio.run(scenario())


def test_tokens_are_counted_as_the_keys_they_were_exchanged_for(tmp_path: Path) -> None:
    db = Database(f"sqlite:///{tmp_path / 'x.db'}")
    key = keys.new_key()
    made = db.write(keys.add, key, name="test", owner="me")
    ensure_secret_file(secret := tmp_path / "signing-secret")
    signer = Signer(SecretFile(secret))
    claims = {"key": made.hash.hex(), "key_id": made.key_id, "born": steady_now()}
    token = signer.make_token({**claims, "until": signer.good_for(60)})
    ended = signer.make_token({**claims, "until": signer.good_for(-60)})
    of_another_row = signer.make_token(
        {**claims, "key_id": made.key_id + 1, "until": signer.good_for(60)}
    )
    ring = Keyring(db, signer)
    full = ConcurrencyLimit(1.0, least=1, most=1)
    full.enter("me")

    async def status_of(credential: str) -> int | None:
        caller = Caller(guarded(Inner(), full, ring), key=credential)
        await caller.task
        return caller.status

    async def scenario() -> None:
        assert [await status_of(each) for each in (token, key)] == [429, 429]
        for unusable in (ended, of_another_row, token + "x", "eyJ"):
            assert await status_of(unusable) == 401

    asyncio.run(scenario())
    db.close()
