"""The order of examples and the learning rate of each step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinkex.cli.sft_plan import Plan


def plan(**changes) -> Plan:
    options = {"num_examples": 10, "batch_size": 4, "num_epochs": 2, "seed": 0}
    return Plan(**{**options, "learning_rate": 1.0, "schedule": "constant", **changes})


@given(
    num_examples=st.integers(1, 60),
    batch_size=st.integers(1, 20),
    num_epochs=st.integers(1, 4),
    seed=st.integers(0, 5),
)
def test_every_epoch_sees_every_example_once(num_examples, batch_size, num_epochs, seed):
    made = plan(num_examples=num_examples, batch_size=batch_size, num_epochs=num_epochs, seed=seed)
    for epoch in range(num_epochs):
        first = epoch * made.steps_per_epoch
        steps = range(first, first + made.steps_per_epoch)
        seen = [each for step in steps for each in made.batch(step)]
        assert sorted(seen) == list(range(num_examples))
        assert all(1 <= len(made.batch(step)) <= batch_size for step in steps)


def test_order_depends_on_seed_and_epoch_alone():
    assert plan().batch(1) == plan(learning_rate=2.0, max_steps=3).batch(1)
    epochs = [[plan(seed=seed).batch(step) for step in range(3)] for seed in (0, 1)]
    assert epochs[0] != epochs[1]
    assert [plan().batch(step) for step in range(3)] != [plan().batch(step) for step in range(3, 6)]


def test_order_is_the_same_in_every_release():
    assert [plan().batch(step) for step in range(3)] == [[1, 0, 2, 4], [9, 3, 8, 6], [7, 5]]


def test_steps_are_limited():
    assert plan().num_steps == 6
    assert plan(max_steps=4).num_steps == 4
    assert plan(max_steps=40).num_steps == 6


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", [1, 1, 1, 1]),
        ("linear", [1, 0.75, 0.5, 0.25]),
        ("cosine", [1, 0.8536, 0.5, 0.1464]),
    ],
)
def test_schedules(schedule, rates):
    made = plan(schedule=schedule, max_steps=4)
    assert [made.rate(step) for step in range(4)] == pytest.approx(rates, abs=1e-4)


def test_warmup_rises_to_the_whole_rate():
    made = plan(warmup_steps=2, max_steps=4, schedule="linear")
    assert [made.rate(step) for step in range(4)] == [0.5, 1.0, 1.0, 0.5]
