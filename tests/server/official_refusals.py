"""The official client after refusals: its next operation does not wait for the refused number.

    python -m tests.server.official_refusals <base_url> <api_key>

Prints a JSON object: for each refusal None, or what went wrong. Run in a process of its own, as the
official client leaves threads behind.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import tinker
from tinker import types

from tests.server.driving import MODEL
from tests.server.official_scenarios import datum

NEXT_WITHIN_S = 60
"""Far above what an operation takes here, far below how long the server waits for a number."""


def image(size: int) -> types.Datum:
    """A datum that holds an image of this size, which does not compress."""
    chunk = types.ImageChunk(data=os.urandom(size), format="png", expected_tokens=3)
    return types.Datum(
        model_input=types.ModelInput(chunks=[chunk]), loss_fn_inputs={"target_tokens": [1, 2, 3]}
    )


def refusals(path: str) -> dict[str, Callable[[Any], Any]]:
    """What the server refuses, by a name."""
    return {
        "access token": lambda it: it.load_state(path, weights_access_token="tml-wrong"),
        "path": lambda it: it.load_state("tinker://no/such"),
        "long path": lambda it: it.load_state("tinker://" + "a" * 500_000),
        "name": lambda it: it.save_state("no good name"),
        "long name": lambda it: it.save_state("a" * 500_000),
        "sampler name": lambda it: it.save_weights_for_sampler("a" * 500_000),
        "ttl": lambda it: it.save_state("b", ttl_seconds=1),
        "metadata": lambda it: it.save_state("c", user_metadata={"k": "v" * 20_000}),
        "long metadata": lambda it: it.save_state("d", user_metadata={"k": "v" * 900_000}),
        "not a number": lambda it: it.optim_step(types.AdamParams(learning_rate=float("nan"))),
        "loss config": lambda it: it.forward_backward(
            [datum()], "cross_entropy", {f"k{n}": 1.0 for n in range(300)}
        ),
        "large datum": lambda it: it.forward_backward([image(3_000_000)], "cross_entropy"),
    }


def attempt(training: Any, refused: Callable[[Any], Any]) -> str | None:
    """None if it was refused and the next operation ran."""
    try:
        refused(training).result(timeout=NEXT_WITHIN_S)
    except tinker.APIStatusError:
        pass
    else:
        return "it was not refused"
    try:
        training.forward_backward([datum()], "cross_entropy").result(timeout=NEXT_WITHIN_S)
    except BaseException as error:
        return f"the next operation: {error!r}"
    return None


def main(base_url: str, api_key: str) -> dict[str, str | None]:
    """What went wrong after each refusal."""
    service = tinker.ServiceClient(base_url=base_url, api_key=api_key)
    first = service.create_lora_training_client(MODEL, rank=8)
    path = first.save_state("first").result().path
    return {
        name: attempt(service.create_lora_training_client(MODEL, rank=8), refused)
        for name, refused in refusals(path).items()
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])), flush=True)
    os._exit(0)  # the client's own threads sometimes abort an orderly end
