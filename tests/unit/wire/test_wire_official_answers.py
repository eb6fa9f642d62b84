"""What the official client makes of our answers and results is what we put into them."""

from __future__ import annotations

import math
from array import array
from typing import Any

import numpy as np
import pytest
from tinker.proto.response_conv import (
    deserialize_forward_backward_output,
    deserialize_sample_response,
)

from tests.unit.wire.official_calls import Recorded
from tests.unit.wire.recorder import ANSWERS, INFO, OUTPUT, RESULTS, RUN, SAMPLE
from tinkex import types
from tinkex.wire import json, protobuf

SAME: list[tuple[str, object]] = [
    ("runs", ANSWERS["training_runs"]),
    ("run", RUN),
    ("checkpoints", ANSWERS["training_runs/s1:train:0/checkpoints"]),
    ("user_checkpoints", ANSWERS["checkpoints"]),
    (
        "urls",
        ANSWERS["training_runs/r/checkpoints/external_weights/x/external_weights_urls"],
    ),
    ("weights_info", ANSWERS["weights_info"]),
    ("sessions", ANSWERS["sessions"]),
    ("session", ANSWERS["sessions/s1"]),
    ("sampler", ANSWERS["samplers/s1:sample:0"]),
    ("search", ANSWERS["sessions/search"]),
    ("audit", ANSWERS["audit"]),
    ("billing", ANSWERS["billing/usage/events"]),
    ("storage", ANSWERS["billing/usage/checkpoints/current"]),
    ("info", INFO),
    ("optim_step", RESULTS["optim_step"]),
    ("save_state", RESULTS["save_weights"]),
    ("load_state", RESULTS["load_weights"]),
]


@pytest.mark.parametrize(("name", "ours"), SAME, ids=[name for name, _ in SAME])
def test_official_client_reads_our_answer(recorded: Recorded, name: str, ours: object) -> None:
    theirs = recorded.results[name]
    assert json.decode(theirs.model_dump_json().encode(), type(ours)) == ours


def test_official_client_reads_paths_from_our_results(recorded: Recorded) -> None:
    assert recorded.results["copy"] == "tinker://r/weights/copy"
    assert recorded.results["save_sampler"].path == "tinker://s1:train:0/sampler_weights/s"
    assert recorded.results["save_external"].path == "tinker://s1:train:0/external_weights/x"


def test_official_client_reads_our_training_result(recorded: Recorded) -> None:
    found = recorded.results["forward"]
    assert found.metrics == OUTPUT.metrics
    assert found.loss_fn_output_type == OUTPUT.loss_fn_output_type
    (output,) = found.loss_fn_outputs
    assert output["logprobs"].tolist() == [-0.5, -0.25]


def test_official_client_reads_our_samples(recorded: Recorded) -> None:
    found = recorded.results["sample"]
    (sequence,) = found.sequences
    assert sequence.tokens == SAMPLE.sequences[0].tokens
    assert sequence.logprobs == SAMPLE.sequences[0].logprobs
    assert sequence.stop_reason == "length"
    assert sequence.sequence_id == "q-0"
    assert found.prompt_cache_hit_tokens == 2
    assert recorded.results["compute_logprobs"] == [None, -0.25, -0.125]


def _numbers(tensor: Any) -> tuple[str, list[int] | None, list[float]]:
    return tensor.dtype, tensor.shape, np.asarray(tensor.to_numpy()).ravel().tolist()


def ints(*values: int) -> types.TensorData:
    return types.TensorData(values, "int64", [len(values)])


OUTPUTS = [
    OUTPUT,
    types.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord", loss_fn_outputs=[]),
    types.ForwardBackwardOutput(
        loss_fn_output_type="ArrayRecord",
        loss_fn_outputs=[
            {"logprobs": types.TensorData([[0.5, 1.0], [2.0, 3.0]]), "n": ints(1)},
            {"logprobs": types.TensorData([[4.0, 5.0]]), "n": ints(2, 3)},
            {"logprobs": types.TensorData([[1.0, 2.0, 3.0]]), "n": ints(4)},
            {"logprobs": types.TensorData([], "float32", [0, 3]), "n": ints(5)},
        ],
        metrics={"loss:sum": -1.5, "x:mean": math.inf},
    ),
    types.ForwardBackwardOutput(loss_fn_output_type="R", loss_fn_outputs=[{}, {}, {}]),
]


@pytest.mark.parametrize("output", OUTPUTS)
def test_official_decoder_agrees_on_training_results(output: types.ForwardBackwardOutput) -> None:
    body = protobuf.encode_forward_backward_output(output)
    theirs = deserialize_forward_backward_output(body)
    ours = protobuf.decode_forward_backward_output(body)
    assert theirs.loss_fn_output_type == ours.loss_fn_output_type
    assert theirs.metrics == ours.metrics
    assert [{k: _numbers(v) for k, v in item.items()} for item in theirs.loss_fn_outputs] == [
        {k: _numbers(v) for k, v in item.items()} for item in ours.loss_fn_outputs
    ]
    assert ours == output


def _topk(rows: int, k: int) -> types.TopkLogprobs:
    return types.TopkLogprobs(
        token_ids_raw=array("i", range(rows * k)).tobytes(),
        logprobs_raw=array("f", [-0.5 * i for i in range(rows * k)]).tobytes(),
        k=k,
        length=rows,
    )


FULL = types.SampleResponse(
    sequences=[
        types.SampledSequence(
            stop_reason="stop",
            tokens_raw=array("i", [1, 2]).tobytes(),
            logprobs_raw=array("f", [-1.0, -2.0]).tobytes(),
            topk=_topk(2, 3),
        ),
        types.SampledSequence(stop_reason="length"),
    ],
    prompt_logprobs_raw=array("f", [math.nan, -0.25]).tobytes(),
    topk_prompt=_topk(2, 1),
    prompt_cache_hit_tokens=5,
    target_prompt_logprobs=types.TensorData([0.0, -1.0], "float32", [2, 3], [0, 1, 2], [2, 0]),
    prompt_alt_tokens=types.PromptAltTokens(
        tokens=types.TensorData([[1, 2]]), logprobs=types.TensorData([[-1.0, -2.0]])
    ),
)


def test_official_decoder_agrees_on_samples() -> None:
    body = protobuf.encode_sample_response(FULL)
    theirs, ours = deserialize_sample_response(body), protobuf.decode_sample_response(body)
    assert ours == FULL
    assert theirs.prompt_logprobs == ours.prompt_logprobs == [None, -0.25]
    assert theirs.topk_prompt_logprobs == ours.topk_prompt_logprobs
    assert theirs.prompt_cache_hit_tokens == 5
    assert [s.tokens for s in theirs.sequences] == [s.tokens for s in ours.sequences]
    assert [s.logprobs for s in theirs.sequences] == [s.logprobs for s in ours.sequences]
    assert [s.topk_logprobs for s in theirs.sequences] == [s.topk_logprobs for s in ours.sequences]
    for name in ("target_prompt_logprobs",):
        assert _numbers(getattr(theirs, name)) == _numbers(getattr(ours, name))
    assert theirs.target_prompt_logprobs.sparse_col_indices == [2, 0]
    assert _numbers(theirs.prompt_alt_tokens.tokens) == _numbers(FULL.prompt_alt_tokens.tokens)  # type: ignore[union-attr]
