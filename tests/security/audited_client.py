"""A whole loop with our client, for a process that is watched: `BASE_URL KEY MODEL`."""

from __future__ import annotations

import sys

import tinkex
from tinkex import types


def main(base_url: str, api_key: str, model: str) -> None:
    """Trains, saves, loads, exports, samples and meets an error."""
    with tinkex.ServiceClient(base_url=base_url, api_key=api_key) as service:
        training = service.create_lora_training_client(base_model=model, rank=4)
        inputs = {"target_tokens": [2, 3], "weights": [1.0, 1.0]}
        datum = types.Datum(types.ModelInput.from_ints([1, 2]), inputs)
        training.forward_backward([datum], "cross_entropy").result()
        training.optim_step(types.AdamParams()).result()
        path = training.save_state("state").result().path
        training.load_state_with_optimizer(path).result()
        training.save_weights_external("export").result()
        sampler = training.save_weights_and_get_sampling_client()
        params = types.SamplingParams(max_tokens=2)
        sampler.sample(types.ModelInput.from_ints([1, 2]), 1, params).result()
        try:
            training.forward_backward([datum], "none").result()
        except tinkex.TinkexError:
            print("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
