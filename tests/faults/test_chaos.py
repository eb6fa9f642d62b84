"""Seeded chaos: dozens of faults over a whole run, and still everything once and in order.

Each seed makes another script of lost, doubled, slow, cut and refused answers over every route of
a training and sampling run. The numbers must be those of a run without faults. For a long search:
`TINKEX_TEST_CHAOS=1000 pytest tests/faults/test_chaos.py`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from tests.support.clock import FakeClock
from tests.support.data import CROSS_ENTROPY, PARAMS, loss_of, make_data
from tests.support.faults import Rule
from tests.support.fixtures import Connect
from tests.support.loopback import LoopbackServer
from tests.support.numbers import sampled_tokens
from tinkex import RetryPolicy, await_many, types

MODEL = "tiny/model"
STEPS = 6
LENGTHS = (3, 4, 5, 6)
FAULTS: tuple[Callable[[Rule], Rule], ...] = (
    lambda rule: rule.drop_before_body(),
    lambda rule: rule.drop_before_answer(is_reset=True),
    lambda rule: rule.apply_then_drop(),
    lambda rule: rule.apply_then_drop(is_reset=True),
    lambda rule: rule.drop_after_headers(),
    lambda rule: rule.truncate_body(4),
    lambda rule: rule.truncate_chunks(12),
    lambda rule: rule.html_502(),
    lambda rule: rule.apply_then_reply(503),
    lambda rule: rule.reply(429, headers={"retry-after-ms": "20"}),
    lambda rule: rule.reply(408),
    lambda rule: rule.reply(409, json_body={"detail": "wait"}),
    lambda rule: rule.empty_400(),
    lambda rule: rule.duplicate(),
    lambda rule: rule.gzipped(),
    lambda rule: rule.chunked(),
    lambda rule: rule.close_after(),
    lambda rule: rule.slow(bytes_per_s=20_000),
)
ROUTES = (
    "client_config",
    "create_session",
    "create_model",
    "create_sampling_session",
    "forward_backward",
    "optim_step",
    "save_weights",
    "asample",
    "retrieve_future",
)


@pytest.mark.parametrize("seed", range(int(os.environ.get("TINKEX_TEST_CHAOS", "30"))))
def test_a_run_through_chaos_equals_a_run_without(
    server: LoopbackServer, connect: Connect, clock: FakeClock, seed: int
) -> None:
    dice = random.Random(seed)
    server.service.flags["fwdbwd_max_chunk_len"] = dice.choice([1, 2, 3, 1024])
    rules = [
        dice.choice(FAULTS)(server.on(dice.choice(ROUTES)))
        .after(dice.randrange(6))
        .times(dice.randint(1, 3))
        for _ in range(40)
    ]
    service = connect()
    training = service.create_lora_training_client(base_model=MODEL, rank=8)
    sampling = service.create_sampling_client(base_model=MODEL, retry=RetryPolicy())

    passes, samples = [], []
    for step in range(STEPS):
        passes.append(training.forward_backward(make_data(LENGTHS), CROSS_ENTROPY))
        training.optim_step(types.AdamParams())
        prompt = types.ModelInput.from_ints([step])
        samples += [sampling.sample(prompt, 1, PARAMS) for _ in range(3)]
    saved = training.save_state("end")

    losses = [outcome.unwrap().metrics["loss:sum"] for outcome in await_many(passes, 60)]
    tokens = [outcome.unwrap().sequences[0].tokens for outcome in await_many(samples, 60)]
    saved.result(60)
    assert losses == [loss_of(LENGTHS, step) for step in range(STEPS)]
    assert tokens == [sampled_tokens([s], 5, 0, 4) for s in range(STEPS) for _ in range(3)]
    numbers = [seq_id for seq_id, _ in server.applied(training.model_id)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert all(p.answers == 1 for p in server.service.world.promises.values())
    struck = sum(rule.hits for rule in rules)
    assert len(server.requests) <= _least(server) + struck, "one retry per fault at most"


def _least(server: LoopbackServer) -> int:
    """The requests of a run in which nothing goes wrong."""
    world = server.service.world
    work = len(world.promises)
    return 2 * work + len(world.samplers) + 3
