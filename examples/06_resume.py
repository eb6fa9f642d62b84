"""Stop and go on: a run resumed from a saved state gives the numbers of one that never stopped.

Needs a server: `tinkex serve`.
"""

import tinkex
from tinkex import types

MODEL, LEARNING_RATE = "smollm2-135m", 1e-3


def batch(number: int) -> list[types.Datum]:
    """The batch of this number, always the same."""
    tokens = [(number * 7 + at * 3) % 200 + 20 for at in range(12)]
    weights = [1.0] * 11
    inputs = {"target_tokens": tokens[1:], "weights": weights}
    return [types.Datum(types.ModelInput.from_ints(tokens[:-1]), inputs)]


def train(training: tinkex.TrainingClient, first: int, last: int) -> list[float]:
    """The losses of these batches."""
    scored = []
    for number in range(first, last):
        scored.append(training.forward_backward(batch(number), "cross_entropy"))
        training.optim_step(types.AdamParams(learning_rate=LEARNING_RATE))
    return [each.result().metrics["loss:sum"] for each in scored]


with tinkex.ServiceClient() as service:
    training = service.create_lora_training_client(base_model=MODEL, rank=8, seed=0)
    train(training, 0, 3)
    # What comes next travels with the checkpoint.
    notes = {"next_batch": "3"}
    path = training.save_state("half-way", user_metadata=notes).result().path
    whole = train(training, 3, 6)
    print(f"saved {path}")
    print("never stopped:", [f"{loss:.5f}" for loss in whole])

with tinkex.ServiceClient() as service:  # another day, another process
    rest = service.create_rest_client()
    run = rest.get_training_run_by_tinker_path(path).result()
    saved = rest.list_checkpoints(run.training_run_id).result().checkpoints
    notes = next(each.user_metadata for each in saved if each.tinker_path == path)
    resumed = service.create_training_client_from_state_with_optimizer(path)
    again = train(resumed, int(notes["next_batch"]), 6)
    print("resumed:      ", [f"{loss:.5f}" for loss in again])
    assert max(abs(a - b) for a, b in zip(whole, again, strict=True)) < 1e-3
