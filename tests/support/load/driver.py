"""The driver: many tenants, requests at a given rate whatever became of those before.

    python -m tests.support.load.driver '<json of Load>'

First a standing backlog of futures that cannot finish yet, which stays to the end; then the rate
is raised until the server gives no more, and what it gives for a while at a little more than that
is its capacity; then long stretches at 70 % of it, the capacity found anew before each, for a
machine is not as fast in one minute as in the next; then short ones at the peak and at twice, in
turn; at last the backlog is let go and everything is fetched. Requests are counted from the time
they should have left. Prints a report as JSON and writes what every operation gave into a file.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from tests.support.load import work
from tests.support.load.tenant import Operation, Phase, Tenant

_TICK_S = 0.002


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What to do to which server."""

    base_url: str
    keys: list[str]
    records: str  # the file for what every operation gave
    pids: list[int]  # the server and its engine
    connections: int = 200
    most_connections: int = 2000  # under overload: people who are kept waiting are joined by others
    parked: int = 10_000
    first_rate: float = 200.0
    raise_by: float = 1.25
    raise_every_s: float = 4.0
    most_raises: int = 16
    steady_s: float = 20.0  # in all
    steady_rounds: int = 10
    steady_share: float = 0.7
    sustained_s: float = 5.0
    peak_share: float = 1.25
    overload_s: float = 10.0  # in all, and as long at the peak
    overload_share: float = 2.0
    overload_rounds: int = 5
    seed: int = 1


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch at one rate, in numbers."""

    rate: float
    seconds: float
    offered: int
    accepted: int
    shed: int
    unsent: int
    goodput: float
    submit_ms: dict[str, float]  # from when it should have left
    answer_ms: dict[str, float]  # from when it left
    shed_ms: dict[str, float]
    without_retry_after: int
    lost_connections: int
    errors: dict[str, int]
    cpu_share: dict[str, float]  # of one core: the server, its engine, this driver


class Usage(msgspec.Struct, frozen=True, array_like=True):
    """What a process holds at a time."""

    at_s: float
    rss_mib: float
    descriptors: int
    threads: int


class Report(msgspec.Struct, kw_only=True):
    """Everything measured."""

    ramp: list[Figures] = []
    capacities: list[float] = []
    stretches_p99_ms: list[float] = []  # at a share of each capacity
    steady: Figures | None = None
    peak: list[Figures] = []
    overload: list[Figures] = []
    outstanding_least: int = 0
    usage: dict[str, list[Usage]] = {}
    completed: int = 0


class Driver:
    """Runs a load."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._dice = random.Random(load.seed)
        self._records = work.Records()
        parts = urlsplit(load.base_url)
        assert parts.hostname is not None
        assert parts.port is not None
        address = parts.hostname, parts.port
        self._tenants = [Tenant(address, key, self._records) for key in load.keys]
        self._parked: list[tuple[Tenant, Operation]] = []
        self._report = Report()
        self._sampling = False

    async def run(self) -> Report:
        """The whole load."""
        await asyncio.gather(*(self._prepare(tenant) for tenant in self._tenants))
        standing = [asyncio.create_task(self._stand(tenant)) for tenant in self._tenants]
        report, load = self._report, self._load
        most = await self._raise()
        watch = asyncio.create_task(self._watch())
        report.steady = await self._steady(most)
        watch.cancel()
        for _ in range(load.overload_rounds):
            seconds = load.overload_s / load.overload_rounds
            report.peak.append(await self._peak(self.capacity, seconds))
            report.overload.append(await self._overload(seconds))
        await self._let_go()
        await asyncio.gather(*standing)
        report.completed = sum(
            len(each)
            for kept in (self._records.models, self._records.samples)
            for each in kept.values()
        )
        await asyncio.to_thread(
            Path(load.records).write_bytes, msgspec.msgpack.encode(self._records)
        )
        return report

    # Before and after -----------------------------------------------------------------------------

    async def _prepare(self, tenant: Tenant) -> None:
        """A run to train, a sampler, and a run whose first number is held back."""
        await tenant.open(max(2, self._load.connections // len(self._tenants) - 1))
        request: dict[str, object] = {"tags": [], "user_metadata": {}, "sdk_version": "0"}
        session_id = (await tenant.call("create_session", request))["session_id"]
        request = {"session_id": session_id, "base_model": work.BASE_MODEL}
        for number in (0, 1):
            promise = await tenant.call("create_model", {**request, "model_seq_id": number})
            await tenant.call("retrieve_future", {"request_id": promise["request_id"]})
        tenant.model_id = f"{session_id}:train:0"
        made = await tenant.call(
            "create_sampling_session", {**request, "sampling_session_seq_id": 0}
        )
        tenant.sampler_id = made["sampling_session_id"]
        await self._park(tenant, f"{session_id}:train:1")

    async def _park(self, tenant: Tenant, model_id: str) -> None:
        """Futures that wait for number 1, which comes last of all."""
        last = self._load.parked // len(self._tenants) + 1
        parked = [
            Operation(_kind_parked(n), n % work.VARIANTS, 0.0, Phase(), model_id, n)
            for n in range(last, 0, -1)
        ]
        for operation in parked[:-1]:
            await tenant.promise(operation)
        self._parked += [(tenant, operation) for operation in parked]

    async def _stand(self, tenant: Tenant) -> None:
        """A poll that is always open, for a future that comes last."""
        operation = next(each for whose, each in self._parked if whose is tenant)
        wire = await tenant.extra_wire()
        while not await tenant.has_result(wire, operation):
            if not wire.is_open:
                wire = await tenant.extra_wire()
        wire.close()

    async def _let_go(self) -> None:
        """Sends the numbers that were held back, and fetches the backlog."""
        for tenant, operation in self._parked:
            if operation.seq_id == 1:
                await tenant.promise(operation)
        for tenant, operation in self._parked:
            tenant.outstanding += 1
            tenant.fetch(operation)
        await self._until_nothing_is_outstanding()

    # Rates ----------------------------------------------------------------------------------------

    @property
    def capacity(self) -> float:
        """The results a second that last, as they were found the last time."""
        return self._report.capacities[-1]

    async def _raise(self) -> float:
        """The most results a second, over rates that rise until the server falls behind twice."""
        load, rate, num_behind = self._load, self._load.first_rate, 0
        await self._offer(rate, min(2.0, load.raise_every_s))  # a start is always slow
        while len(self._report.ramp) < load.most_raises and num_behind < 2:
            found = await self._offer(rate, load.raise_every_s)
            self._report.ramp.append(found)
            num_behind = num_behind + 1 if found.goodput < 0.85 * rate else 0
            rate *= load.raise_by
        return max(found.goodput for found in self._report.ramp)

    async def _steady(self, most: float) -> Figures:
        """All stretches at a share of the capacity, as one."""
        load, phase, rounds = self._load, Phase(), []
        for _ in range(load.steady_rounds):
            found = await self._peak(most, load.sustained_s)
            self._report.ramp.append(found)
            self._report.capacities.append(found.goodput)
            most = found.goodput
            seconds, before = load.steady_s / load.steady_rounds, len(phase.accepted_s)
            rounds.append(await self._offer(load.steady_share * self.capacity, seconds, phase))
            p99 = _percentiles(phase.accepted_s[before:]).get("p99", 0.0)
            self._report.stretches_p99_ms.append(p99)
        return msgspec.structs.replace(
            rounds[-1],
            seconds=load.steady_s,
            rate=_mean([each.rate for each in rounds]),
            goodput=_mean([each.goodput for each in rounds]),
            cpu_share={
                name: _mean([each.cpu_share[name] for each in rounds])
                for name in rounds[-1].cpu_share
            },
        )

    async def _peak(self, most: float, seconds: float) -> Figures:
        """A little more than the server gives."""
        return await self._offer(self._load.peak_share * most, seconds)

    async def _overload(self, seconds: float) -> Figures:
        """Twice the capacity, from more connections."""
        load = self._load
        for tenant in self._tenants:
            tenant.spread(load.most_connections // len(self._tenants))
        found = await self._offer(load.overload_share * self.capacity, seconds)
        for tenant in self._tenants:
            tenant.gather()
        return found

    async def _offer(self, rate: float, seconds: float, phase: Phase | None = None) -> Figures:
        """Sends at the rate for so long, at times as random as independent people's.

        What happens is added to the phase, if one is given.

        Results count once the first quarter is over, or two seconds of it: what waits has come to
        its usual length then.
        """
        phase, loop = phase or Phase(), asyncio.get_running_loop()
        for tenant in self._tenants:
            tenant.current = phase
        meter = _CpuMeter(self._load.pids)
        began = loop.time()
        due = began
        least = self._outstanding()
        counted_from, num_before = began + min(2.0, seconds / 4), phase.completed
        while (now := loop.time()) < began + seconds:
            if now < counted_from:
                num_before = phase.completed
            while due <= now:
                self._send(phase, due)
                due += self._dice.expovariate(rate)
            least = min(least, self._outstanding())
            await asyncio.sleep(_TICK_S)
        cpu_share = meter.shares()
        self._report.outstanding_least = least + len(self._parked) - len(self._tenants)
        goodput = (phase.completed - num_before) / (loop.time() - counted_from)
        for tenant in self._tenants:
            tenant.give_up()
        await self._settle()
        return _figures(phase, rate, seconds, goodput, cpu_share)

    def _send(self, phase: Phase, due: float) -> None:
        kind = self._dice.choices(work.KINDS, work.SHARES)[0]
        variant = self._dice.randrange(work.VARIANTS)
        phase.offered += 1
        self._dice.choice(self._tenants).submit(Operation(kind, variant, due, phase))

    async def _settle(self) -> None:
        """Waits until nothing is outstanding, and all the while fills the numbers that were turned
        away: what came after them waits for them."""
        phase = Phase()
        while any(tenant.free_numbers for tenant in self._tenants) or self._outstanding():
            for tenant in self._tenants:
                now = asyncio.get_running_loop().time()
                for _ in range(len(tenant.free_numbers) - tenant.unsent):
                    tenant.submit(Operation("pass", 0, now, phase))
            await asyncio.sleep(0.05)
        assert not phase.errors, phase.errors

    def _outstanding(self) -> int:
        return sum(tenant.outstanding for tenant in self._tenants)

    async def _until_nothing_is_outstanding(self) -> None:
        while self._outstanding():  # noqa: ASYNC110  an event would cost on every answer
            await asyncio.sleep(0.005)

    async def _watch(self) -> None:
        """Notes once a second what the server's processes hold."""
        began = time.monotonic()
        names = dict(zip(("server", "engine"), self._load.pids, strict=False))
        while True:
            for name, pid in names.items():
                usage = usage_of(pid, time.monotonic() - began)
                self._report.usage.setdefault(name, []).append(usage)
            await asyncio.sleep(1.0)


def _kind_parked(number: int) -> str:
    return "step" if number % 3 == 0 else "pass"


class _CpuMeter:
    """The share of one core that processes use from here on."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = dict(zip(("server", "engine"), pids, strict=False)) | {"driver": os.getpid()}
        self._before = self._used_s()
        self._began = time.monotonic()

    def shares(self) -> dict[str, float]:
        took_s = time.monotonic() - self._began
        now = self._used_s()
        return {name: round((now[name] - self._before[name]) / took_s, 3) for name in now}

    def _used_s(self) -> dict[str, float]:
        return {name: cpu_s(pid) for name, pid in self._pids.items()}


def cpu_s(pid: int) -> float:
    """The CPU seconds a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def usage_of(pid: int, at_s: float) -> Usage:
    """What a process holds now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    threads = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[17])
    rss_mib = round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)
    return Usage(
        round(at_s, 1), rss_mib, sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()), threads
    )


def _figures(
    phase: Phase, rate: float, seconds: float, goodput: float, cpu_share: dict[str, float]
) -> Figures:
    return Figures(
        rate=round(rate, 1),
        seconds=seconds,
        offered=phase.offered,
        accepted=len(phase.accepted_s),
        shed=len(phase.shed_s),
        unsent=phase.unsent,
        goodput=round(goodput, 1),
        submit_ms=_percentiles(phase.accepted_s),
        answer_ms=_percentiles(phase.answered_s),
        shed_ms=_percentiles(phase.shed_s),
        without_retry_after=phase.without_retry_after,
        lost_connections=phase.lost,
        errors=dict(phase.errors),
        cpu_share=cpu_share,
    )


def _mean(values: list[float]) -> float:
    return round(sum(values) / len(values), 3)


def _percentiles(times_s: list[float]) -> dict[str, float]:
    if not times_s:
        return {}
    ordered = sorted(times_s)
    last = len(ordered) - 1
    points = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "max": 1.0}
    return {name: round(1000 * ordered[round(at * last)], 1) for name, at in points.items()}


def main() -> None:
    """Runs the load that the argument describes."""
    load = msgspec.json.decode(sys.argv[1], type=Load)
    try:
        from uvloop import run
    except ImportError:
        run = asyncio.run
    report = run(Driver(load).run())
    print(msgspec.json.encode(report).decode(), flush=True)


if __name__ == "__main__":
    main()
