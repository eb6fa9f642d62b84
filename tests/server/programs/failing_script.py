"""A program with one mistake, whose traceback the tests read.

python tests/server/programs/failing_script.py <base_url> <api_key> <mistake>
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import tinkex
from tinkex import types

DATUM = types.Datum(
    types.ModelInput.from_ints([1, 2, 3]),
    {"target_tokens": [2, 3, 4], "weights": [1.0, 1.0, 1.0]},
)


def make(base_url: str, api_key: str) -> Any:
    config = tinkex.Config(base_url=base_url, api_key=api_key, retry_budget_s=0.1)
    return tinkex.ServiceClient(config=config)


def own_loss(data: Any, logprobs: Any) -> Any:
    raise tinkex.ValidationError("mine")  # raised here


def run(service: Any, mistake: str) -> None:
    if mistake == "constructor":
        service.create_lora_training_client("null", rank=4096)  # the mistake
    training = service.create_lora_training_client("null", rank=4)
    if mistake == "result":
        training.forward_backward([DATUM], "nosuch").result()  # the mistake
    if mistake == "outcome":
        training.forward_backward([DATUM], "nosuch").outcome().unwrap()  # the mistake
    if mistake == "input":
        training.forward_backward([], "cross_entropy").result()  # the mistake
    if mistake == "own-loss":
        training.forward_backward_custom([DATUM], own_loss).result()  # the mistake


async def run_async(service: Any, mistake: str) -> None:
    if mistake == "async-constructor":
        await service.create_lora_training_client_async("null", rank=4096)  # the mistake
    training = await service.create_lora_training_client_async("null", rank=4)
    await (await training.forward_backward_async([DATUM], "nosuch"))  # the mistake


def main(base_url: str, api_key: str, mistake: str) -> None:
    if mistake == "address":
        tinkex.ServiceClient(base_url="nonsense", api_key=api_key)  # the mistake
    service = make(base_url, api_key)
    if mistake.startswith("async"):
        asyncio.run(run_async(service, mistake))
    else:
        run(service, mistake)


if __name__ == "__main__":
    main(*sys.argv[1:])
