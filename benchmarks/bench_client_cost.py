"""What does the client itself cost, beside the official one?

Both run the same work against the same loopback server, each in a fresh process, in turn: 2,000
`sample` calls with all of them in flight, then 200 `forward_backward` calls of 64 x 512 tokens, a
few of them under way at once. Measured: CPU seconds (user and system) of the client's process for
each part, imports and warm-up not counted, and its resident memory afterwards.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._measure import ROOT, loopback, report, summary

SAMPLES = 2000
PROMPT_TOKENS = 256
CALLS, EXAMPLES, TOKENS, UNDER_WAY = 200, 64, 512, 4
BAR = 0.5


def batch(sdk: Any) -> list[Any]:
    """Returns 64 examples of 512 tokens, as a training loop builds them."""
    tokens = list(range(1, TOKENS + 1))
    weights = [1.0] * TOKENS
    return [
        sdk.Datum(
            model_input=sdk.ModelInput.from_ints(tokens),
            loss_fn_inputs={"target_tokens": tokens, "weights": weights},
        )
        for _ in range(EXAMPLES)
    ]


def sample_all(service: Any, sdk: Any) -> float:
    sampler = service.create_sampling_client(base_model="loopback/tiny")
    prompt = sdk.ModelInput.from_ints(list(range(PROMPT_TOKENS)))
    params = sdk.SamplingParams(max_tokens=16)
    sampler.sample(prompt, 1, params).result()
    start = time.process_time()
    handles = [sampler.sample(prompt, 1, params) for _ in range(SAMPLES)]
    for handle in handles:
        assert len(handle.result().sequences[0].tokens) == 16
    return time.process_time() - start


def train_all(service: Any, sdk: Any) -> float:
    training = service.create_lora_training_client(base_model="loopback/tiny", rank=8)
    data = batch(sdk)
    training.forward_backward(data, "cross_entropy").result()
    under_way: collections.deque[Any] = collections.deque()
    start = time.process_time()
    for _ in range(CALLS):
        under_way.append(training.forward_backward(data, "cross_entropy"))
        if len(under_way) >= UNDER_WAY:
            check(under_way.popleft())
    while under_way:
        check(under_way.popleft())
    return time.process_time() - start


def check(handle: Any) -> None:
    rows = handle.result().loss_fn_outputs
    assert len(rows) == EXAMPLES
    assert len(rows[0]["logprobs"].data) == TOKENS


def measure(name: str, url: str) -> dict[str, float]:
    sdk: Any = __import__(name)
    service = sdk.ServiceClient(base_url=url, api_key="tml-benchmark")
    sampling = sample_all(service, sdk)
    training = train_all(service, sdk)
    return {"sample_s": sampling, "train_s": training, "resident_mib": resident_mib()}


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def run(name: str, url: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--client", name, "--url", url]
    environment = {**os.environ, "TINKER_TELEMETRY": "0"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment, cwd=ROOT)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--check", action="store_true", help="fail if a bar is missed")
    parser.add_argument("--client", choices=("tinkex", "tinker"))
    parser.add_argument("--url")
    options = parser.parse_args()
    if options.client:
        print(json.dumps(measure(options.client, options.url)), flush=True)
        return 0
    runs: dict[str, list[dict[str, float]]] = {"tinkex": [], "tinker": []}
    for _ in range(options.rounds):
        for name, results in runs.items():
            with loopback() as url:
                results.append(run(name, url))
    return 0 if compare(runs) or not options.check else 1


def compare(runs: dict[str, list[dict[str, float]]]) -> bool:
    within = []
    for figure in ("sample_s", "train_s", "resident_mib"):
        ours = [each[figure] for each in runs["tinkex"]]
        theirs = [each[figure] for each in runs["tinker"]]
        ratio = statistics.median(ours) / statistics.median(theirs)
        within.append(
            report(
                f"client cost: {figure}",
                ratio,
                at_most=BAR,
                ours=summary(ours),
                official=summary(theirs),
            )
        )
    return all(within)


if __name__ == "__main__":
    sys.exit(main())
