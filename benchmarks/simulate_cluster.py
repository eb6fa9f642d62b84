"""How many GPUs can one leader feed, and what breaks first?

Simulates clusters of 1 to 1,000 workers under three mixes of training runs, for half a minute each,
with the leader's costs that `bench_leader.py --save` has measured, and prints a table. `--validate`
compares the simulation with a scheduler: 1 to 8 null engines that take 200 ms for each call;
`--compare` with servers that `bench_workers.py` measured when the machine was quiet.

Assumed of a device, an 8B model and rank 32 (change the constants to try others): 10,000 tokens a
second in training; 256 sequences at once in sampling, 15 ms a step and 0.05 ms more for each
sequence. A run's batches and answers have the sizes that stand in `MIXES`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import itertools

from benchmarks._cluster import SLICES_PER_S, Call, Cluster, Device, Sampling

COSTS = Path(__file__).with_name("leader_costs.json")
SIZES = (1, 8, 64, 256, 1000)
WARM_S, MEASURED_S = 45.0, 30.0
QUIET_PER_S = {1: 19.0, 2: 37.8, 8: 151.5}
"""Measured operations per second of null engines that take 50 ms each, by number of
workers: LOG.md, Workers."""

VALIDATED_S = 0.2  # a call of the null engines that a simulation is compared with
RANK = 32
HOSTED_PER_S = 400e6  # bytes of a folder that one device reads or writes in a second


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of a decoder's matrices with LoRA: attention, MLP and unembedding."""

    hidden: int
    intermediate: int
    layers: int
    queries: int  # heads x head size
    keys: int
    vocabulary: int

    def adapter_bytes(self, rank: int) -> int:
        """Returns the bytes of an adapter on disk: A and B of every matrix, in float32."""
        attention = 2 * (self.hidden + self.queries) + 2 * (self.hidden + self.keys)
        layer = attention + 3 * (self.hidden + self.intermediate)
        return 4 * rank * (self.layers * layer + self.hidden + self.vocabulary)

    def state_bytes(self, rank: int) -> int:
        """Returns the same with the two moments of AdamW."""
        return 3 * self.adapter_bytes(rank)


SHAPES = {
    "8B": Shape(
        hidden=4096, intermediate=12288, layers=36, queries=4096, keys=1024, vocabulary=151936
    ),
    "32B": Shape(
        hidden=5120, intermediate=25600, layers=64, queries=8192, keys=1024, vocabulary=151936
    ),
}


class Mix(msgspec.Struct, frozen=True, kw_only=True):
    """A mix of runs. `sampling_share` of the workers sample; `runs_per_gpu` train side by side."""

    sampling_share: float
    runs_per_gpu: float
    rl_share: float  # of the runs; the others are SFT


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of a run's steps."""

    rows: int = 64
    tokens: int = 512
    groups: int = 64  # requests for samples in each RL step
    samples: int = 8
    answer: int = 512


MIXES = {
    "RL": Mix(sampling_share=0.75, runs_per_gpu=0.5, rl_share=1.0),
    "SFT": Mix(sampling_share=0.0, runs_per_gpu=2.0, rl_share=0.0),
    "mixed": Mix(sampling_share=0.4, runs_per_gpu=1.0, rl_share=0.5),
}


class Costs:
    """The measured costs of one leader, with its log in `store`."""

    def __init__(
        self, found: dict[str, Any], store: str = "sqlite", *, operation_share: float = 1.0
    ) -> None:
        # part of an operation's time that is the leader's own
        self._operation_share = operation_share
        self._store, self._frames, self._slots = found[store], found["frames"], found["slots"]

    def call(self, name: str) -> Call:
        """Returns the cost of one operation."""
        cost = self._store[name]
        return Call(
            leader_s=self._operation_share * cost["cpu_us"] / 1e6,
            log_bytes=cost["log_bytes"],
            worker_bytes=self._frames[name]["bytes"],
        )

    @property
    def slice_s(self) -> float:
        """Returns the leader's seconds for one sampling call of a worker."""
        return float(self._frames["step_sampling"]["cpu_us"]) / 1e6

    def idle_share(self, num_slots: int) -> float:
        """Returns the share of the leader's time that so many idle slots take."""
        return self._of_slots("idle_cpu_s_per_s", num_slots)

    def slot_s(self, num_slots: int) -> float:
        """Returns the seconds that so many slots add to an operation."""
        more = self._of_slots("cpu_us", num_slots) - self._slots["1"]["cpu_us"]
        return self._operation_share * max(0.0, more) / 1e6

    def _of_slots(self, name: str, num_slots: int) -> float:
        """Interpolates linearly between the measured numbers of slots."""
        known = sorted((int(count), float(each[name])) for count, each in self._slots.items())
        for (low, before), (high, after) in itertools.pairwise(known):
            if low <= num_slots <= high:
                return before + (after - before) * (num_slots - low) / (high - low)
        return known[0][1] if num_slots < known[0][0] else known[-1][1]


class TrainingRun:
    """One tenant's run: SFT with two steps in flight, or RL: sample, train, save, repeat."""

    def __init__(self, cluster: Cluster, costs: Costs, name: str, run: Run, *, is_rl: bool) -> None:
        self._cluster, self._run, self._name = cluster, run, name
        self._train = costs.call("forward_backward 64x512")
        self._step = costs.call("optim_step")
        self._sample = costs.call("sample 1024+8x512")
        self._version = self._left = 0
        begin = self._sample_all if is_rl else self._supervised
        for _ in range(1 if is_rl else 2):
            cluster.at(cluster.random.uniform(0.0, 30.0), begin)

    def _supervised(self) -> None:
        self._train_step(self._run.rows * self._run.tokens, lambda _: self._supervised())

    def _train_step(self, tokens: int, done: Callable[[float], None]) -> None:
        def nothing(_: float) -> None:
            pass

        send = self._cluster.train
        send(self._name, self._name, "forward_backward", tokens, self._train, nothing)
        send(self._name, self._name, "optim_step", 0, self._step, done)

    def _sample_all(self) -> None:
        run = self._run
        self._left = run.groups
        for _ in range(run.groups):
            length = round(self._cluster.random.uniform(0.5, 1.0) * run.answer)
            self._cluster.sample(
                Sampling(
                    tenant=self._name,
                    model_id=self._name,
                    version=self._version,
                    num_samples=run.samples,
                    tokens=length,
                    call=self._sample,
                    asked_at=self._cluster.now,
                    done=self._sampled,
                )
            )

    def _sampled(self, _: float) -> None:
        self._left -= 1
        if not self._left:
            tokens = self._run.rows * self._run.tokens
            self._train_step(tokens, lambda _: self._save())

    def _save(self) -> None:
        device = self._cluster.device
        self._version += 1
        self._cluster.put_bytes += device.adapter_bytes
        self._cluster.at(self._cluster.now + device.load_s, self._sample_all)


def device_of(shape: Shape) -> Device:
    """Returns the assumed device."""
    adapter = shape.adapter_bytes(RANK)
    return Device(
        train_tokens_per_s=10_000.0,
        call_s=0.02,
        seats=256,
        step_s=0.015,
        step_seat_s=0.00005,
        adapter_bytes=adapter,
        state_bytes=shape.state_bytes(RANK),
        load_s=adapter / HOSTED_PER_S,
    )


def simulate(
    size: int,
    mix: Mix,
    costs: Costs,
    *,
    seed: int = 0,
    seconds: float = MEASURED_S,
    slices_per_s: float = SLICES_PER_S,
) -> dict[str, Any]:
    """Simulates a cluster of so many workers under a mix of runs."""
    samplers = 0 if size == 1 else round(size * mix.sampling_share)
    trainers = size - samplers
    cluster = Cluster(
        device_of(SHAPES["8B"]),
        trainers=trainers,
        samplers=samplers,
        seed=seed,
        idle_share=costs.idle_share(size),
        slot_s=costs.slot_s(size),
        slice_s=costs.slice_s,
        slices_per_s=slices_per_s,
        has_moves=False,  # models begin evenly spread, and runs are alike
    )
    num_runs = max(1, round(size * mix.runs_per_gpu))
    for number in range(num_runs):
        name = f"run-{number}"
        is_rl = samplers > 0 and number < round(num_runs * mix.rl_share)
        cluster.add_model(name, name, number % trainers)
        TrainingRun(cluster, costs, name, Run(), is_rl=is_rl)
    cluster.run(WARM_S)
    before = _totals(cluster)
    for waited in cluster.waited_s.values():
        waited.clear()
    cluster.run(WARM_S + seconds)
    found = {name: (after - before[name]) / seconds for name, after in _totals(cluster).items()}
    return {
        "gpus": size,
        "trainers busy": round(found["train_s"] / trainers, 3),
        "seats taken": round(found["seat_s"] / (256 * samplers), 3) if samplers else None,
        "leader": round(found["leader_s"] + found["background_s"], 3),
        "of it sampling calls": round(max(0.0, found["background_s"] - costs.idle_share(size)), 3),
        "operations/s": round(found["train"] + found["sample"], 1),
        "train p50/p99 s": _quantiles(cluster.waited_s["train"]),
        "sample p50/p99 s": _quantiles(cluster.waited_s["sample"]),
        "put MB/s": round(found["put"] / 1e6, 1),
        "get MB/s": round(found["get"] / 1e6, 1),
        "log GB/day": round(found["log"] * 86400 / 1e9, 1),
        "to workers MB/s": round(found["worker"] / 1e6, 2),
    }


def _totals(cluster: Cluster) -> dict[str, float]:
    return {
        "train_s": cluster.computed_s(),
        "seat_s": cluster.sampled_s(),
        "leader_s": cluster.leader.used_s(cluster.now),
        "background_s": cluster.leader.background_s,
        "train": cluster.finished["train"],
        "sample": cluster.finished["sample"],
        "put": cluster.put_bytes,
        "get": cluster.get_bytes,
        "log": cluster.log_bytes,
        "worker": cluster.worker_bytes,
    }


def _quantiles(values: list[float]) -> str | None:
    if len(values) < 2:
        return None
    cuts = statistics.quantiles(values, n=100)
    return f"{cuts[49]:.2f}/{cuts[98]:.2f}"


def null_calls_per_s(num_workers: int, leader_s: float, delay_s: float = 0.05) -> float:
    """Returns calls per second of null engines: 32 runs, two operations in flight each."""
    nothing = Device(
        train_tokens_per_s=1e12,
        call_s=delay_s,
        seats=1,
        step_s=0.0,
        step_seat_s=0.0,
        adapter_bytes=0.0,
        state_bytes=0.0,
        load_s=0.0,
    )
    cluster = Cluster(
        nothing,
        trainers=num_workers,
        samplers=0,
        max_operations=1,
    )
    call = Call(leader_s=leader_s)
    for number in range(32):
        name = f"run-{number}"
        cluster.add_model(name, "tenant", number % num_workers)
        for _ in range(2):
            cluster.at(0.0, partial(_repeat, cluster, name, call))
    cluster.run(5.0)
    before = cluster.finished["train"]
    cluster.run(25.0)
    return (cluster.finished["train"] - before) / 20.0


def _repeat(cluster: Cluster, name: str, call: Call, _: float = 0.0) -> None:
    """Sends an operation now, and the next one at each response."""
    again = partial(_repeat, cluster, name, call)
    cluster.train(name, "tenant", "forward_backward", 8, call, again)


def compare(costs: Costs) -> None:
    """Prints simulated results beside those that `bench_workers.py` measured on a quiet machine."""
    leader_s = costs.call("forward_backward 1x64").leader_s
    for count, measured in QUIET_PER_S.items():
        simulated = null_calls_per_s(count, leader_s)
        line = {"workers": count, "measured/s": measured, "simulated/s": round(simulated, 1)}
        print(json.dumps(line | {"error": round(simulated / measured - 1, 3)}), flush=True)


def validate() -> None:
    """Measures schedulers with 1 to 8 null engines beside their simulation.

    Everything shares this machine, so an operation takes the leader as long as it takes all there
    is: that is measured just before and after, with engines that take no time.
    """
    from benchmarks.bench_leader import null_calls_per_s as measure

    for count in (1, 2, 4, 8):
        before_s = 1 / measure(count, 0.0)
        measured = measure(count, VALIDATED_S)
        leader_s = statistics.mean((before_s, 1 / measure(count, 0.0)))
        simulated = null_calls_per_s(count, leader_s, VALIDATED_S)
        line = {"workers": count, "no delay/s": round(1 / leader_s, 1)}
        line |= {"measured/s": round(measured, 2), "simulated/s": round(simulated, 2)}
        print(json.dumps(line | {"error": round(simulated / measured - 1, 3)}), flush=True)


def table(row: dict[str, Any], *, has_head: bool) -> str:
    """Returns a row of a Markdown table, below its head."""
    cells = [
        "-" if each is None else each if isinstance(each, str) else f"{each:,}"
        for each in row.values()
    ]
    head = ["| " + " | ".join(row) + " |", "|---" * len(row) + "|"] if has_head else []
    return "\n".join([*head, "| " + " | ".join(cells) + " |"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--mixes", default=",".join(MIXES))
    parser.add_argument("--store", default="sqlite", choices=["sqlite", "postgres"])
    parser.add_argument(
        "--slices", type=float, default=SLICES_PER_S, help="calls a second of a busy sampler"
    )
    parser.add_argument(
        "--operation-share", type=float, default=1.0, help="of an operation's cost, to try a design"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--validate", action="store_true", help="beside a real scheduler")
    parser.add_argument("--compare", action="store_true", help="with what was measured earlier")
    options = parser.parse_args()
    if options.validate:
        validate()
        return
    found = json.loads(COSTS.read_text())
    costs = Costs(found, options.store, operation_share=options.operation_share)
    if options.compare:
        compare(costs)
        return
    for name, shape in SHAPES.items():
        sizes = [round(each(RANK) / 1e6) for each in (shape.adapter_bytes, shape.state_bytes)]
        print(f"{name}, rank {RANK}: adapter {sizes[0]} MB, with its optimizer {sizes[1]} MB")
    for name in options.mixes.split(","):
        sizes = [int(each) for each in options.sizes.split(",")]
        print(f"\n{name}\n")
        of_size = partial(
            simulate, mix=MIXES[name], costs=costs, seed=options.seed, slices_per_s=options.slices
        )
        for number, size in enumerate(sizes):
            print(table(of_size(size), has_head=not number), flush=True)


if __name__ == "__main__":
    main()
