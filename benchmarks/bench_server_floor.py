"""How soon is a server ready, and how long does a small request take through it?

Starts the embedded server on a model folder and drives it with the official client: seconds to
ready and to the first finished `forward_backward`, `create_model`, a training step of 8 x 64,
sampling, the round trip of an `optim_step`, the latency of a small request while a long forward
runs, and resident memory. These are wall times of one machine, not claims.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TINKER_TELEMETRY", "0")

import tinker
from tinker import types

from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer


def batch(examples: int, tokens: int) -> list[types.Datum]:
    ids = [10 + i % 200 for i in range(tokens + 1)]
    inputs = {"target_tokens": ids[1:], "weights": [1.0] * tokens}
    datum = types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs=inputs)
    return [datum] * examples


def median_s(work: Callable[[], object], rounds: int) -> float:
    """Returns the median wall time of some rounds after one that warms up."""
    times = []
    for _ in range(rounds + 1):
        began = time.monotonic()
        work()
        times.append(time.monotonic() - began)
    return round(statistics.median(times[1:]), 4)


def latency_ms(server: EmbeddedServer) -> dict[str, float]:
    """Returns the latency of a small request, in milliseconds."""
    address = f"{server.base_url}/api/v1/get_server_capabilities"
    request = urllib.request.Request(address, headers={"X-API-Key": server.api_key})
    times = []
    for _ in range(20):
        began = time.monotonic()
        urllib.request.urlopen(request).read()
        times.append((time.monotonic() - began) * 1000)
        time.sleep(0.05)
    return {"p50": round(statistics.median(times), 1), "max": round(max(times), 1)}


def resident_mib(server: EmbeddedServer) -> list[int]:
    """Returns the resident memory of the server and of its engine, in MiB."""
    children = subprocess.run(["pgrep", "-P", str(server.pid)], capture_output=True, text=True)
    pids = [server.pid, *map(int, children.stdout.split())]
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids]
    return [count * os.sysconf("SC_PAGE_SIZE") // 2**20 for count in pages]


def measure(model: Path, data_dir: Path) -> dict[str, Any]:
    began = time.monotonic()
    served = (ServedModel(name="m", source=str(model)),)
    with EmbeddedServer(ServerConfig(data_dir=data_dir, port=0, models=served)) as server:
        found: dict[str, Any] = {"ready_s": round(time.monotonic() - began, 2)}
        service = tinker.ServiceClient(base_url=server.base_url, api_key=server.api_key)
        sent_at = time.monotonic()
        training = service.create_lora_training_client("m", rank=8)
        found["create_model_s"] = round(time.monotonic() - sent_at, 3)
        training.forward_backward(batch(1, 8), "cross_entropy").result()
        found["first_forward_backward_s"] = round(time.monotonic() - began, 2)

        def step() -> None:
            scored = training.forward_backward(batch(8, 64), "cross_entropy")
            training.optim_step(types.AdamParams()).result()
            scored.result()

        found["step_8x64_s"] = median_s(step, 3)
        found["optim_step_round_trip_s"] = median_s(
            lambda: training.optim_step(types.AdamParams()).result(), 20
        )
        sampler = training.save_weights_and_get_sampling_client()
        prompt = types.ModelInput.from_ints(list(range(10, 26)))
        params = types.SamplingParams(max_tokens=32, stop=[])
        for count in (1, 16):
            found[f"sample_{count}x32_s"] = median_s(
                lambda count=count: sampler.sample(prompt, count, params).result(), 1
            )
        long = training.forward_backward(batch(8, 256), "cross_entropy")
        found["request_ms_while_a_forward_runs"] = latency_ms(server)
        long.result()
        found["resident_mib"] = resident_mib(server)
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a model folder; default: a tiny random one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        model = options.model or make_tiny_model(Path(root) / "model")
        figures = measure(model.absolute(), Path(root) / "data")
    print(json.dumps({"question": "server floor", "model": model.name, **figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
