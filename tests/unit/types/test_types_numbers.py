"""Numbers of numpy and torch are taken like Python's own; what is no number is refused by name."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from tinkex.errors import ValidationError
from tinkex.types import AdamParams, Datum, DimuonParams, LoraConfig, ModelInput, SamplingParams
from tinkex.wire import json as wire_json


@pytest.mark.parametrize("rate", [np.float64(0.5), np.float32(0.5), torch.tensor(0.5)])
def test_a_learning_rate_may_come_from_a_schedule(rate):
    params = AdamParams(learning_rate=rate)
    assert type(params.learning_rate) is float
    assert wire_json.encode(params) == wire_json.encode(AdamParams(learning_rate=0.5))


def test_whole_numbers_are_written_as_the_floats_they_stand_for():
    assert type(AdamParams(learning_rate=1).learning_rate) is float
    assert type(DimuonParams(learning_rate=np.int64(1)).learning_rate) is float


def test_whole_numbers_of_numpy():
    lora = LoraConfig(rank=np.int64(4), seed=np.int32(2))
    assert (lora.rank, lora.seed, type(lora.rank)) == (4, 2, int)
    params = SamplingParams(
        max_tokens=np.int64(3), seed=torch.tensor(4), top_k=np.int8(5), temperature=np.float32(0.5)
    )
    assert msgspec.to_builtins(params) == msgspec.to_builtins(
        SamplingParams(max_tokens=3, seed=4, top_k=5, temperature=0.5)
    )


@pytest.mark.parametrize(
    ("stop", "plain"),
    [
        (None, None),
        ("a", "a"),
        ([], []),
        (("a", "b"), ["a", "b"]),
        ([np.int64(1), 2], [1, 2]),
        (np.array([1, 2]), [1, 2]),
        (range(3), [0, 1, 2]),
    ],
)
def test_stops(stop, plain):
    assert SamplingParams(stop=stop).stop == plain


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: AdamParams(learning_rate="fast"), "learning_rate='fast'"),
        (lambda: AdamParams(eps=True), "eps=True"),
        (lambda: SamplingParams(max_tokens="2.5"), "max_tokens='2.5'"),
        (lambda: SamplingParams(max_tokens=2.5), "max_tokens=2.5"),
        (lambda: SamplingParams(top_p="x"), "top_p='x'"),
        (lambda: SamplingParams(stop=5), "stop=5"),
        (lambda: SamplingParams(stop=np.int64(5)), r"stop=\[5\]"),
        (lambda: SamplingParams(stop=["a", 1]), "stop='a'"),
        (lambda: LoraConfig(rank=8.5), "rank=8.5"),
        (lambda: Datum(ModelInput.empty(), None), "loss_fn_inputs"),
    ],
)
def test_what_is_no_number_is_refused_by_name(make, named):
    with pytest.raises(ValidationError, match=named):
        make()


def test_texts_of_numbers_and_whole_floats_are_numbers():
    assert AdamParams(learning_rate="1e-3") == AdamParams(learning_rate=0.001)
    assert SamplingParams(max_tokens="2", top_k=5.0) == SamplingParams(max_tokens=2, top_k=5)
    assert LoraConfig(rank=8.0) == LoraConfig(rank=8)
    assert ModelInput.from_ints(["1", 2.0]).to_ints() == [1, 2]


def test_bytes_are_tokens_one_by_one():
    assert ModelInput.from_ints(b"\xffab").to_ints() == [255, 97, 98]
    assert ModelInput.from_ints(bytearray(b"abcd")).to_ints() == [97, 98, 99, 100]


def test_arrays_in_metadata_are_written_as_lists():
    assert wire_json.encode({"a": np.arange(2), "b": np.float32(0.5)}) == b'{"a":[0,1],"b":0.5}'
