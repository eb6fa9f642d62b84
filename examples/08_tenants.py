"""Two tenants on one server: they train side by side and cannot see each other's work.

Needs a server (`tinkex serve`) and a second key:

    export OTHER_API_KEY=$(tinkex keys create --owner other)
"""

import os
import sys

import tinkex
from tinkex import types

MODEL = "smollm2-135m"
if "OTHER_API_KEY" not in os.environ:
    sys.exit("Set OTHER_API_KEY first: export OTHER_API_KEY=$(tinkex keys create --owner other)")


def example(tokens: list[int]) -> list[types.Datum]:
    inputs = {"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)}
    return [types.Datum(types.ModelInput.from_ints(tokens[:-1]), inputs)]


with (
    tinkex.ServiceClient() as alice,
    tinkex.ServiceClient(api_key=os.environ["OTHER_API_KEY"]) as bob,
):
    tenants = {"alice": alice, "bob": bob}
    runs = {
        name: service.create_lora_training_client(base_model=MODEL, rank=8, seed=0)
        for name, service in tenants.items()
    }
    # The requests of both are in flight together; the server batches them, adapters apart.
    for step in range(3):
        scored = {
            "alice": runs["alice"].forward_backward(example([10, 20, 30, 40]), "cross_entropy"),
            "bob": runs["bob"].forward_backward(example([50, 60, 70, 80]), "cross_entropy"),
        }
        for training in runs.values():
            training.optim_step(types.AdamParams(learning_rate=1e-3))
        losses = {name: each.result().metrics["loss:sum"] for name, each in scored.items()}
        print(f"step {step}", {name: round(loss, 3) for name, loss in losses.items()})

    path = runs["alice"].save_weights_for_sampler("mine").result().path
    print("alice saved", path)
    try:
        bob.create_sampling_client(model_path=path)
    except tinkex.NotFoundError as error:
        print("bob cannot use it:", error.message)
