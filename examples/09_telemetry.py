"""See what the client does: a handler of your own, a log, and counters with percentiles.

Handlers run in this process; nothing is sent anywhere. Needs a server: `tinkex serve`.
"""

import logging

import tinkex
from tinkex import telemetry, types

MODEL = "smollm2-135m"
slowest = {"path": "", "duration": 0.0}


def on_request(event, measurements, metadata, config):
    """Keeps the slowest request; `config` is what was given to attach()."""
    if measurements["duration"] > config["duration"]:
        config.update(path=metadata["path"], duration=measurements["duration"])


logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
telemetry.attach("slowest", "tinkex.http.request.stop", on_request, slowest)
telemetry.attach_logger("INFO")  # one line per event, to the standard logging

with telemetry.Metrics() as metrics, tinkex.ServiceClient() as service:
    training = service.create_lora_training_client(base_model=MODEL, rank=4, seed=0)
    inputs = {"target_tokens": [2, 3], "weights": [1.0, 1.0]}
    batch = [types.Datum(types.ModelInput.from_ints([1, 2]), inputs)]
    for _ in range(3):
        training.forward_backward(batch, "cross_entropy").result()
        training.optim_step(types.AdamParams(learning_rate=1e-3)).result()
    seen = metrics.snapshot()

print("slowest request:", slowest)
for name, count in sorted(seen.counters.items()):
    print(f"{name} = {count}")
for name, histogram in sorted(seen.histograms.items()):
    print(f"{name}: p50 {histogram.p50:.4f}  p95 {histogram.p95:.4f}")
telemetry.detach("slowest")
