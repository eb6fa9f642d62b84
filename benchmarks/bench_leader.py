"""What load can one leader serve? CPU time and bytes of one operation, by kind and size.

- `sqlite`, `postgres`: a server with the null engine at no delay, driven over HTTP by this process;
  the CPU time of the server's process alone for each operation, from HTTP to the answered poll, and
  the bytes that its database grew by.
- `frames`: the CPU time that one call of a worker takes in the leader, and its bytes.
- `slots`: a scheduler with 1 to 1,000 engine slots and engines that compute nothing: CPU time per
  second while there is no work, and for each operation, from the log to its stored result.

`--save` writes the costs to `benchmarks/leader_costs.json`, which `simulate_cluster.py` reads; of
CPU times it keeps the least of all runs so far.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import sqlite3
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from benchmarks._measure import machine
from benchmarks._served import KEY, Served
from tests.scheduler.work import Bench
from tests.support.waiting import wait_until

from tinkex import ServiceClient, types
from tinkex.engine.interface import (
    LoraSpec,
    OptimRequest,
    SampleRequest,
    TrainDatum,
    TrainRequest,
)
from tinkex.engine.null import NullEngine
from tinkex.engine.options import EngineOptions
from tinkex.engine.process import spawn
from tinkex.engine.process.local import EngineProcess
from tinkex.scheduler import SchedulerConfig

COSTS = Path(__file__).with_name("leader_costs.json")
TRAINING = {"1x64": (1, 64), "8x512": (8, 512), "64x512": (64, 512)}
SAMPLING = {"256+64": (256, 1, 64), "1024+8x512": (1024, 8, 512)}
NUM_SLOTS = (1, 8, 64, 256, 1000)
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
RANDOM = random.Random(0)
Costs = dict[str, Any]


def cpu_s(pid: int) -> float:
    """Returns the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def datums(rows: int, tokens: int) -> list[types.Datum]:
    """Returns a batch of so many examples."""
    found = []
    for _ in range(rows):
        ids = [RANDOM.randrange(200) for _ in range(tokens)]  # else PostgreSQL compresses them
        inputs = {"target_tokens": ids, "weights": [1.0] * tokens}
        found.append(types.Datum(types.ModelInput.from_ints(ids), inputs))
    return found


class Sender:
    """Sends operations of one kind from several threads, a few in flight in each."""

    def __init__(self, submits: Sequence[Callable[[], Any]], on_their_way: int = 4) -> None:
        self._submits, self._on_their_way = submits, on_their_way
        self.num_done = 0

    def run(self, seconds: float) -> None:
        """Sends for so many seconds, and returns when all operations are answered."""
        end = time.monotonic() + seconds
        threads = [threading.Thread(target=self._work, args=(each, end)) for each in self._submits]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    def _work(self, submit: Callable[[], Any], end: float) -> None:
        sent: deque[Any] = deque()
        done = 0
        while time.monotonic() < end:
            sent.append(submit())
            if len(sent) > self._on_their_way:
                sent.popleft().result()
                done += 1
        for each in sent:
            each.result()
        self.num_done += done + len(sent)


def measured(
    submits: Sequence[Callable[[], Any]], pid: int, size_of: Callable[[], int], seconds: float
) -> Costs:
    """Returns the leader's CPU microseconds and the log's bytes for each operation."""
    Sender(submits).run(1.0)
    sender, cpu_before, size_before = Sender(submits), cpu_s(pid), size_of()
    began = time.monotonic()
    sender.run(seconds)
    took_s, done = time.monotonic() - began, sender.num_done
    return {
        "cpu_us": round(1e6 * (cpu_s(pid) - cpu_before) / done, 1),
        "log_bytes": round((size_of() - size_before) / done),
        "per_s": round(done / took_s, 1),
    }


def operations(served: Served, size_of: Callable[[], int], seconds: float) -> Costs:
    """Measures the costs of training and sampling operations of a server."""
    found: Costs = {}
    with ServiceClient(base_url=served.url, api_key=KEY) as service:
        found["idle_cpu_s_per_s"] = round(idle_share(served.pid), 4)
        trainings = [
            service.create_lora_training_client(base_model="smollm2-135m", rank=8) for _ in range(8)
        ]
        for name, (rows, tokens) in TRAINING.items():
            submits = [partial(_train, each, datums(rows, tokens)) for each in trainings]
            found[f"forward_backward {name}"] = measured(submits, served.pid, size_of, seconds)
        adam = types.AdamParams(learning_rate=1e-4)
        steps = [lambda t=t: t.optim_step(adam) for t in trainings]
        found["optim_step"] = measured(steps, served.pid, size_of, seconds)
        samplers = [each.save_weights_and_get_sampling_client() for each in trainings]
        for name, (prompt, count, length) in SAMPLING.items():
            ids = types.ModelInput.from_ints([RANDOM.randrange(200) for _ in range(prompt)])
            params = types.SamplingParams(max_tokens=length)
            samples = [lambda s=s, i=ids, n=count, p=params: s.sample(i, n, p) for s in samplers]
            found[f"sample {name}"] = measured(samples, served.pid, size_of, seconds)
    return found


def _train(training: Any, data: list[types.Datum]) -> Any:
    return training.forward_backward(data, "cross_entropy")


def idle_share(pid: int, seconds: float = 3.0) -> float:
    """Returns the CPU seconds per second of an idle process."""
    time.sleep(1.0)
    before = cpu_s(pid)
    time.sleep(seconds)
    return (cpu_s(pid) - before) / seconds


def sqlite(seconds: float) -> Costs:
    """Measures with the log in SQLite."""
    with Served(Path("none"), ["--device", "null:0"]) as served:
        (path,) = served.data_dir.glob("*.db")

        def size() -> int:  # with the pages that are in the write-ahead log so far
            with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
                count, page = (
                    connection.execute(f"PRAGMA {name}").fetchone()[0]
                    for name in ("page_count", "page_size")
                )
                return int(count) * int(page)

        return operations(served, size, seconds)


@contextmanager
def postgres_server() -> Iterator[str]:
    """Yields the URL of a PostgreSQL server started for the benchmark."""
    from tests.store.postgres import PostgresServer

    with tempfile.TemporaryDirectory(prefix="tinkex-pg-", ignore_cleanup_errors=True) as name:
        server = PostgresServer(Path(name))
        server.start()
        try:
            yield server.url
        finally:
            server.kill()


def postgres(seconds: float) -> Costs:
    """Measures with the log in PostgreSQL."""
    import psycopg

    with postgres_server() as url:
        own = url.replace("postgresql://", "postgresql+psycopg://")
        with (
            Served(Path("none"), ["--device", "null:0", "--database-url", own]) as served,
            psycopg.connect(url, autocommit=True) as connection,
        ):

            def size() -> int:
                row = connection.execute("SELECT pg_database_size('postgres')").fetchone()
                assert row is not None
                return int(row[0])

            return operations(served, size, seconds)


class CountingSocket:
    """A worker's connection that counts its bytes."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.num_bytes = 0

    def sendmsg(self, parts: list[bytes]) -> int:
        sent = self._connection.sendmsg(parts)
        self.num_bytes += sent
        return sent

    def sendall(self, data: bytes | memoryview) -> None:
        self._connection.sendall(data)
        self.num_bytes += len(data)

    def recv_into(self, buffer: memoryview) -> int:
        received = self._connection.recv_into(buffer)
        self.num_bytes += received
        return received

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def train_request(rows: int, tokens: int) -> TrainRequest:
    """Returns a worker's request for a batch of so many examples."""
    ids = np.arange(tokens) % 200
    inputs = {"target_tokens": ids, "weights": np.ones(tokens, np.float32)}
    return TrainRequest(
        adapter_id="a", data=[TrainDatum(tokens=ids, inputs=inputs) for _ in range(rows)]
    )


def sample_request(prompt: int, count: int, length: int) -> SampleRequest:
    """Returns a worker's request for a sample."""
    return SampleRequest(
        request_id="sample",
        model="null",
        tokens=np.arange(prompt) % 200,
        num_samples=count,
        params=types.SamplingParams(max_tokens=length),
    )


def frames(seconds: float) -> Costs:
    """Measures calls of a worker's process without a scheduler."""
    begun = spawn.begin()
    counting = CountingSocket(begun.connection)
    begun = begun._replace(connection=counting)  # type: ignore[arg-type]  # speaks like a socket
    found: Costs = {}
    with EngineProcess(
        EngineOptions(models={"null": "none"}, device="null"), begun=begun
    ) as engine:
        engine.create_adapter("a", "null", LoraSpec(rank=8))
        calls: dict[str, Callable[[], object]] = {
            f"forward_backward {name}": partial(engine.forward_backward, [train_request(*size)])
            for name, size in TRAINING.items()
        }
        calls["optim_step"] = lambda: engine.optim_step([OptimRequest(adapter_id="a")])
        for name, size in SAMPLING.items():
            calls[f"sample {name}"] = partial(_sampled, engine, sample_request(*size))
        calls["step_sampling"] = lambda: engine.step_sampling(0.05)
        for name, call in calls.items():
            found[name] = _called(call, counting, seconds)
    return found


def _sampled(engine: EngineProcess, request: Any) -> None:
    engine.submit_samples([request])
    engine.step_sampling(0.05)


def _called(call: Callable[[], object], counting: CountingSocket, seconds: float) -> Costs:
    call()
    end, done = time.monotonic() + seconds / 2, 0
    before_s, before = time.process_time(), counting.num_bytes
    while time.monotonic() < end:
        call()
        done += 1
    return {
        "cpu_us": round(1e6 * (time.process_time() - before_s) / done, 1),
        "bytes": round((counting.num_bytes - before) / done),
    }


def slots(seconds: float) -> Costs:
    """Measures a scheduler alone, by its number of slots."""
    return {str(count): _with_slots(count, seconds) for count in NUM_SLOTS}


def _with_slots(count: int, seconds: float) -> Costs:
    threading.stack_size(256 * 1024)
    with tempfile.TemporaryDirectory() as folder:
        engines = [NullEngine] * count
        work = Bench(Path(folder), engines[0], None, *engines[1:]).start()
        try:
            work.scheduler.wait_ready(60)
            models = [work.model(f"tenant-{n % 16}") for n in range(32)]
            wait_until(lambda: all(work.scheduler.next_number(each) == 1 for each in models))
            time.sleep(1.0)
            before_s = time.process_time()
            time.sleep(seconds)
            idle = (time.process_time() - before_s) / seconds
            before_s, began, done = time.process_time(), time.monotonic(), 0
            while time.monotonic() < began + seconds:
                done += 1
                ids = [work.train(m, done, f"tenant-{n % 16}") for n, m in enumerate(models)]
                for n, each in enumerate(ids):
                    work.result(each, f"tenant-{n % 16}")
            spent_s = time.process_time() - before_s
            return {
                "idle_cpu_s_per_s": round(idle, 4),
                "cpu_us": round(1e6 * spent_s / (done * len(models))),
            }
        finally:
            work.close()


def null_calls_per_s(num_slots: int, delay_s: float, seconds: float = 6.0) -> float:
    """Returns calls per second of a scheduler with null engines that take so long for each: 32 runs
    spread over all, each with two operations in flight."""
    engine, config = partial(NullEngine, delay_s=delay_s), SchedulerConfig(max_batch_operations=1)
    with tempfile.TemporaryDirectory() as folder:
        work = Bench(Path(folder), engine, config, *[engine] * (num_slots - 1)).start()
        try:
            work.scheduler.wait_ready(60)
            models = [work.model() for _ in range(32)]
            wait_until(lambda: all(work.scheduler.next_number(each) == 1 for each in models))
            sent = deque((m, work.train(m, 1 + n)) for n in range(2) for m in models)
            number, done, began = 2, 0, time.monotonic()
            warm_until = began + seconds  # runs spread meanwhile
            while time.monotonic() < warm_until + seconds:
                model, request_id = sent.popleft()
                work.result(request_id)
                if time.monotonic() >= warm_until:
                    done += 1
                if model == models[0]:
                    number += 1
                sent.append((model, work.train(model, number)))
            return done / (time.monotonic() - warm_until)
        finally:
            work.close()


def least(before: Costs, now: Costs) -> Costs:
    """Returns the lower CPU time of two measurements, since other processes only add to it; other
    values are those of the last measurement."""
    found = dict(now)
    for name, value in now.items():
        if isinstance(value, dict):
            found[name] = least(before.get(name, value), value)
        elif "cpu" in name:
            found[name] = min(value, before.get(name, value))
    return found


QUESTIONS = {"sqlite": sqlite, "postgres": postgres, "frames": frames, "slots": slots}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="questions by comma", default=",".join(QUESTIONS))
    parser.add_argument("--seconds", type=float, default=4.0, help="for each figure")
    parser.add_argument("--save", action="store_true", help="keep the costs for the simulation")
    options = parser.parse_args()
    found: Costs = json.loads(COSTS.read_text()) if COSTS.exists() else {}
    for name in options.only.split(","):
        measured_now = QUESTIONS[name](options.seconds)
        print(json.dumps({"question": name, **measured_now}, indent=1), flush=True)
        found[name] = least(found.get(name, measured_now), measured_now)
    if options.save:
        found["machine"] = machine()
        COSTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
