"""How sequences are divided into parts and micro-batches."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tinkex.engine.interface import TrainDatum
from tinkex.engine.training.batching import Item, divide, microbatches

MAX_TOKENS = 1024


def _items(lengths: list[int], adapters: str = "a") -> list[Item]:
    return [
        Item(
            0,
            n,
            TrainDatum(tokens=np.zeros(length, np.int64), inputs={}),
            adapters[n % len(adapters)],
        )
        for n, length in enumerate(lengths)
    ]


def _sizes(parts: list[list[Item]]) -> list[int]:
    return [sum(item.num_tokens for item in part) for part in parts]


@pytest.mark.parametrize("adapters", ["a", "ab", "abcdefgh"])
@pytest.mark.parametrize("num_parts", range(2, 9))
def test_parts_hold_every_sequence_once_and_are_about_equal(num_parts, adapters) -> None:
    dice = random.Random(num_parts)
    num_divided = 0
    for _ in range(50):
        lengths = [dice.randint(1, MAX_TOKENS // num_parts) for _ in range(dice.randint(1, 80))]
        parts = divide(_items(lengths, adapters), num_parts, MAX_TOKENS)
        if parts is None:
            continue
        num_divided += 1
        indices = [item.datum_index for part in parts for item in part]
        assert sorted(indices) == list(range(len(lengths)))
        assert len(parts) == num_parts
        assert all(parts)
        assert max(_sizes(parts)) <= 1.1 * sum(lengths) / num_parts
    assert num_divided >= 10


def test_equal_sequences_of_one_adapter_are_dealt_out_evenly() -> None:
    for num_parts in (2, 4, 8):
        parts = divide(_items([64] * 32), num_parts, MAX_TOKENS)
        assert parts is not None
        assert _sizes(parts) == [64 * 32 // num_parts] * num_parts


def test_adapters_stay_within_one_part_where_they_can() -> None:
    parts = divide(_items([64] * 32, "abcd"), 4, MAX_TOKENS)
    assert parts is not None
    assert [{item.adapter_id for item in part} for part in parts] == [{"a"}, {"b"}, {"c"}, {"d"}]


@pytest.mark.parametrize(
    ("lengths", "num_parts"),
    [
        pytest.param([64] * 32, 1, id="one part"),
        pytest.param([64] * 3, 2, id="too few tokens"),
        pytest.param([64] * 15, 8, id="too few tokens for eight parts"),
        pytest.param([513] * 4, 2, id="too long for half of a micro-batch"),
        pytest.param([512, 200, 200], 2, id="uneven"),
    ],
)
def test_a_batch_is_left_whole_where_dividing_would_not_pay(lengths, num_parts) -> None:
    assert divide(_items(lengths), num_parts, MAX_TOKENS) is None


def test_micro_batches_hold_every_sequence_once_and_at_most_max_tokens() -> None:
    lengths = [300, 5, 1500, 700, 1024, 64, 64, 900]
    batches = list(microbatches(_items(lengths, "ab"), MAX_TOKENS))
    assert sorted(item.datum_index for batch in batches for item in batch) == list(range(8))
    assert all(len(batch) == 1 or sum(_sizes([batch])) <= MAX_TOKENS for batch in batches)
