"""Sampling, training, checkpoint and session values."""

from __future__ import annotations

import math
from array import array
from typing import Any

import numpy as np
import pytest
from tinker.types import ParsedCheckpointTinkerPath as OfficialPath

from tinkex import types
from tinkex.errors import InvalidPathError, ValidationError
from tinkex.types.sampling import EMPTY_LOGPROB


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("temperature", -0.1),
        ("temperature", math.inf),
        ("temperature", math.nan),
        ("top_k", 0),
        ("top_k", -2),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_p", math.nan),
    ],
)
def test_sampling_params_outside_their_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValidationError, match=name):
        types.SamplingParams(**{name: value})  # type: ignore[arg-type]


def test_sampling_params_have_the_protocols_defaults() -> None:
    params = types.SamplingParams()
    assert (params.max_tokens, params.seed, params.stop) == (None, None, None)
    assert (params.temperature, params.top_k, params.top_p) == (1.0, -1, 1.0)


def _topk(rows: list[list[tuple[int, float]]]) -> types.TopkLogprobs:
    cells = [cell for row in rows for cell in row]
    return types.TopkLogprobs(
        token_ids_raw=array("i", [token for token, _ in cells]).tobytes(),
        logprobs_raw=array("f", [logprob for _, logprob in cells]).tobytes(),
        k=len(rows[0]),
        length=len(rows),
    )


def test_empty_cells_of_top_k_are_left_out() -> None:
    empty = (0, EMPTY_LOGPROB)
    found = _topk([[empty, empty], [(3, -0.5), empty], [(1, -1.0), (2, -2.0)]])
    assert found.tolist() == [None, [(3, -0.5)], [(1, -1.0), (2, -2.0)]]


def test_samples_show_lists_and_arrays() -> None:
    sequence = types.SampledSequence(
        stop_reason="stop",
        tokens_raw=array("i", [1, 2]).tobytes(),
        logprobs_raw=array("f", [-0.5, -1.0]).tobytes(),
        topk=_topk([[(1, -0.5)], [(2, -1.0)]]),
    )
    response = types.SampleResponse(
        sequences=[sequence],
        prompt_logprobs_raw=array("f", [math.nan, -0.5]).tobytes(),
        topk_prompt=sequence.topk,
    )
    assert (sequence.tokens, sequence.logprobs) == ([1, 2], [-0.5, -1.0])
    assert sequence.tokens_np.dtype == np.int32
    assert sequence.logprobs_np is not None
    assert sequence.logprobs_np.tolist() == [-0.5, -1.0]
    assert sequence.topk_logprobs == [[(1, -0.5)], [(2, -1.0)]]
    assert response.prompt_logprobs == [None, -0.5]
    assert response.prompt_logprobs_np is not None
    assert math.isnan(response.prompt_logprobs_np[0])
    assert response.topk_prompt_logprobs == sequence.topk_logprobs


def test_samples_without_extras_say_none() -> None:
    sequence = types.SampledSequence(stop_reason="length")
    response = types.SampleResponse(sequences=[sequence])
    assert sequence.tokens == []
    assert sequence.tokens_np.tolist() == []
    for value in (
        sequence.logprobs,
        sequence.logprobs_np,
        sequence.topk_logprobs,
        response.prompt_logprobs,
        response.prompt_logprobs_np,
        response.topk_prompt_logprobs,
    ):
        assert value is None


@pytest.mark.parametrize(
    ("type_", "values", "message"),
    [
        (types.LoraConfig, {"rank": 0}, "rank"),
        (
            types.LoraConfig,
            {"train_mlp": False, "train_attn": False, "train_unembed": False},
            "Nothing would be trained",
        ),
        (types.AdamParams, {"learning_rate": -1.0}, "learning_rate"),
        (types.AdamParams, {"eps": math.nan}, "eps"),
        (types.AdamParams, {"weight_decay": math.inf}, "weight_decay"),
        (types.AdamParams, {"grad_clip_norm": -1.0}, "grad_clip_norm"),
        (types.AdamParams, {"beta1": 1.0}, "beta1"),
        (types.AdamParams, {"beta2": -0.1}, "beta2"),
        (types.DimuonParams, {"learning_rate": -1.0}, "learning_rate"),
        (types.DimuonParams, {"learning_rate": 1.0, "grad_clip_norm": -1.0}, "grad_clip_norm"),
        (types.DimuonParams, {"learning_rate": 1.0, "beta1": 1.0}, "beta1"),
        (types.UserSearchOwner, {"owner_urns": []}, "1 to 10"),
        (types.UserSearchOwner, {"owner_urns": ["u"] * 11}, "1 to 10"),
        (types.ClientFinishedSessionStatusQuery, {"reasons": []}, "reasons"),
        (types.SessionSearchRequest, {"limit": 0}, "limit"),
        (types.SessionSearchRequest, {"display_name": ""}, "display_name"),
        (types.OptimStepRequest, {"model_id": "m"}, "Exactly one"),
        (
            types.OptimStepRequest,
            {
                "model_id": "m",
                "adam_params": types.AdamParams(),
                "optimizer_params": types.DimuonParams(learning_rate=1.0),
            },
            "Exactly one",
        ),
    ],
)
def test_values_outside_their_range_are_refused(
    type_: Any, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        type_(**values)


def test_optimizer_step_knows_its_params() -> None:
    adam, dimuon = types.AdamParams(), types.DimuonParams(learning_rate=1.0)
    assert types.OptimStepRequest(model_id="m", adam_params=adam).params is adam
    assert types.OptimStepRequest(model_id="m", optimizer_params=dimuon).params is dimuon


@pytest.mark.parametrize("kind", ["weights", "sampler_weights", "external_weights"])
def test_paths_have_the_official_parts(kind: str) -> None:
    path = f"tinker://s1:train:0/{kind}/step-1"
    ours = types.ParsedCheckpointTinkerPath.from_tinker_path(path)
    theirs = OfficialPath.from_tinker_path(path)
    for name in ("tinker_path", "training_run_id", "checkpoint_type", "checkpoint_id"):
        assert getattr(ours, name) == getattr(theirs, name)


@pytest.mark.parametrize(
    "path",
    ["foo", "tinker://r/x/n", "tinker://r/weights/n/m", "tinker:///weights/n", "r/weights/n"],
)
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(InvalidPathError) as caught:
        types.ParsedCheckpointTinkerPath.from_tinker_path(path)
    assert isinstance(caught.value, ValueError)


def test_tokens_for_the_server_do_not_show() -> None:
    assert "secret" not in repr(types.AuthTokenResponse(jwt="secret"))


def test_client_config_has_the_official_defaults() -> None:
    from tinker import types as official

    for ours, theirs in (
        (types.ClientConfig(), official.ClientConfigResponse()),
        (types.ClientDynamicConfig(), official.ClientDynamicConfigResponse()),
    ):
        official_flags = theirs.model_dump()
        assert {name: getattr(ours, name) for name in official_flags} == official_flags


def test_flags_of_our_own_are_off_unless_a_server_sends_them() -> None:
    from tinker import types as official

    flags, theirs = types.ClientConfig(), official.ClientConfigResponse.model_fields
    own = {name: getattr(flags, name) for name in flags.__struct_fields__ if name not in theirs}
    assert own == {"extensions": []}
