"""Datum: conversion of loss inputs, and provenance."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch

from tinkex.errors import ValidationError
from tinkex.types import (
    Datum,
    ImageAssetPointerChunk,
    ModelInput,
    PromptProvenanceSpan,
    SampledProvenanceSpan,
    TensorData,
)

INPUT = ModelInput.from_ints([1, 2, 3])


@pytest.mark.parametrize(
    ("key", "dtype"),
    [
        ("target_tokens", "int64"),
        ("weights", "float32"),
        ("advantages", "float32"),
        ("logprobs", "float32"),
        ("clip_low_threshold", "float32"),
        ("clip_high_threshold", "float32"),
        ("sequence_ratio_mask", "float32"),
    ],
)
def test_lists_become_the_dtype_of_their_key(key: str, dtype: str) -> None:
    tensor = Datum(INPUT, {key: [1, 2, 3]}).loss_fn_inputs[key]
    assert (tensor.dtype, tensor.shape) == (dtype, [3])


def test_whole_floats_and_texts_are_target_tokens() -> None:
    for values in ([2.0, 3.0], ["2", "3"]):
        assert Datum(INPUT, {"target_tokens": values}).loss_fn_inputs["target_tokens"].data == [
            2,
            3,
        ]
    with pytest.warns(UserWarning, match="cut towards zero") as caught:
        Datum(INPUT, {"target_tokens": [1.5]})
    assert caught[0].filename == __file__


def test_nested_lists_keep_their_shape() -> None:
    tensor = Datum(INPUT, {"weights": [[1, 2], [3, 4]]}).loss_fn_inputs["weights"]
    assert (tensor.dtype, tensor.shape) == ("float32", [2, 2])


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("mask", [1, 2], "its dtype is not known"),
        ("target_tokens", ["1.5"], "target_tokens"),
        ("weights", "3", "is a str, not a list of numbers"),
        ("weights", ["a"], "weights"),
        ("weights", 3, "weights"),
        ("weights", None, "weights"),
    ],
)
def test_wrong_inputs_are_refused_by_name(key: str, value: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Datum(INPUT, {key: value})


def test_arrays_and_tensors_are_taken_under_any_key() -> None:
    given = TensorData([1.0])
    datum = Datum(INPUT, {"a": np.array([1]), "b": torch.tensor([1.5]), "c": given})
    assert datum.loss_fn_inputs["a"].dtype == "int64"
    assert datum.loss_fn_inputs["b"].dtype == "float32"
    assert datum.loss_fn_inputs["c"] is given


def test_only_targets_and_weights_are_sparsified() -> None:
    wide = torch.zeros(4, 9)
    wide[1, 2] = 0.5
    datum = Datum(INPUT, {"weights": wide, "advantages": wide, "logprobs": wide[0]})
    assert datum.loss_fn_inputs["weights"].is_sparse
    assert not datum.loss_fn_inputs["advantages"].is_sparse
    assert datum.loss_fn_inputs["weights"].tolist() == wide.tolist()


def test_the_callers_mapping_is_left_alone() -> None:
    inputs = {"weights": [1.0]}
    Datum(INPUT, inputs)
    assert inputs == {"weights": [1.0]}


def test_provenance_must_tile_the_positions() -> None:
    datum = Datum(INPUT, {"target_tokens": [2, 3, 4]})
    prompt = PromptProvenanceSpan(sequence_id="q", length=1)
    sampled = SampledProvenanceSpan(sequence_id="q", length=2)
    found = datum.with_provenance([prompt, sampled], [sampled, prompt])
    assert found.model_input_spans == [prompt, sampled]
    assert found.loss_fn_input_spans == [sampled, prompt]
    assert pickle.loads(pickle.dumps(found)) == found
    assert datum.with_provenance([prompt, sampled]).loss_fn_input_spans is None
    with pytest.raises(ValidationError, match="model_input spans must tile its 3"):
        datum.with_provenance(model_input=[prompt])
    with pytest.raises(ValidationError, match="loss_fn_inputs spans must tile"):
        datum.with_provenance(loss_fn_inputs=[sampled])


def test_provenance_without_targets_is_not_measured() -> None:
    span = SampledProvenanceSpan(sequence_id="q", length=9)
    assert Datum(INPUT).with_provenance(loss_fn_inputs=[span]).loss_fn_input_spans == [span]


@pytest.mark.parametrize("span", [PromptProvenanceSpan, SampledProvenanceSpan])
def test_spans_are_not_negative(span: Any) -> None:
    for offset, length in ((-1, 0), (0, -1)):
        with pytest.raises(ValidationError, match="offset"):
            span(sequence_id="q", offset=offset, length=length)


def test_size_is_what_the_chunking_counts() -> None:
    datum = Datum(INPUT, {"target_tokens": [2, 3, 4], "weights": [1, 1, 1]})
    assert datum.size_bytes == 3 * 16
    pointer = ModelInput(chunks=[ImageAssetPointerChunk(location="x://y", format="png")])
    assert Datum(pointer).size_bytes == 5
