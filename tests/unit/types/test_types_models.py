"""Every type answers pydantic's calls, and survives them; what they return is what the official
types return, where there is such a type."""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
import warnings
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
import pydantic
import pytest
import tinker
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tinker import types as official

from tests.unit.wire import strategies as s
from tinkex import types
from tinkex.errors import ValidationError

QUICK = settings(
    max_examples=3,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
    deadline=None,
)
BUILT = {
    types.Datum: s.DATUMS,
    types.ModelInput: s.MODEL_INPUTS,
    types.SamplingParams: s.SAMPLING_PARAMS,
}
# The first three hold what others hold; raw bytes of samples have their own test below.
NOT_MADE = {
    *(types.SampleRequest, types.ForwardBackwardRequest, types.TelemetrySendRequest),
    *(types.SampleResponse, types.SampledSequence, types.TopkLogprobs),
}
MODELS = [each for each in s.STRUCTS if each not in NOT_MADE] + [
    types.EncodedTextChunk,
    types.TensorData,
]
IMAGE = types.ImageChunk(data=b"\x00png", format="png", expected_tokens=3)
DATUM = types.Datum(
    types.ModelInput(chunks=[types.EncodedTextChunk([1, 2]), IMAGE]),
    {"target_tokens": [2, 3], "weights": [0.5, 1.0]},
)


def values_of(model: Any) -> st.SearchStrategy[Any]:
    if model is types.EncodedTextChunk:
        return st.builds(types.EncodedTextChunk, st.lists(st.integers(0, 2**31 - 1), max_size=4))
    if model is types.TensorData:
        return s.ANY_TENSOR
    return BUILT[model] if model in BUILT else s.values_of(model)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
@QUICK
@given(data=st.data())
def test_every_type_survives_a_dump(model: Any, data: st.DataObject) -> None:
    value = data.draw(values_of(model))
    for mode in ("python", "json"):
        assert model.model_validate(value.model_dump(mode=mode)) == value
    assert model.model_validate_json(value.model_dump_json()) == value
    assert json.loads(value.model_dump_json(indent=2)) == value.model_dump(mode="json")
    assert value.model_copy() == value
    assert value.model_copy(deep=True) == copy.deepcopy(value) == value
    assert model.model_validate(value.model_dump(exclude_defaults=True)) == value


@pytest.mark.parametrize("model", [*MODELS, types.SampleRequest], ids=lambda model: model.__name__)
def test_every_type_can_be_a_field_of_a_pydantic_model(model: Any) -> None:
    user = pydantic.create_model("User", value=(model | None, None), many=(list[model], []))
    assert user().value is None
    schema = user.model_json_schema()
    assert schema["properties"]["many"]["items"]["title"] == model.__name__
    own = model.model_json_schema()
    assert set(own["properties"]) >= set(model.model_fields)
    assert set(own.get("required", [])) == {
        name for name, field in model.model_fields.items() if field.is_required()
    }


def test_a_pydantic_model_reads_and_writes_our_types() -> None:
    class Example(pydantic.BaseModel):
        datum: types.Datum
        chunk: types.ModelInputChunk
        params: types.SamplingParams = types.SamplingParams(max_tokens=4)

    example = Example.model_validate({"datum": DATUM, "chunk": IMAGE.model_dump()})
    assert (example.datum, example.chunk) == (DATUM, IMAGE)
    assert Example.model_validate_json(example.model_dump_json()) == example
    with pytest.raises(pydantic.ValidationError, match="ImageChunk needs data"):
        Example.model_validate({"datum": DATUM, "chunk": {"type": "image", "bytes": ""}})


def test_msgspec_alone_writes_and_reads_them() -> None:
    params = types.SamplingParams(max_tokens=3, stop=["a"])
    for value in (DATUM, DATUM.model_input, IMAGE, params, types.EncodedTextChunk([1])):
        plain = msgspec.to_builtins(value)
        assert msgspec.convert(plain, type(value)) == value
        assert msgspec.json.decode(msgspec.json.encode(value), type=type(value)) == value
    with pytest.raises(msgspec.ValidationError, match="is none of encoded_text"):
        msgspec.convert({"chunks": [{"type": "video"}]}, types.ModelInput)


SAME: list[tuple[str, dict[str, Any]]] = [
    ("SamplingParams", {}),
    ("SamplingParams", {"max_tokens": "5", "temperature": "0.5", "stop": ["a"], "seed": 3.0}),
    ("AdamParams", {"learning_rate": "1e-4"}),
    ("DimuonParams", {"learning_rate": 0.5}),
    ("AdamOptimizerConfig", {"type": "adamw"}),
    ("DimuonOptimizerConfig", {}),
    ("LoraConfig", {"rank": "8", "train_mlp": "false"}),
    ("ModelInput", {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]}),
    ("ModelInput", {"chunks": [{"type": "dmel", "dmel": "AAEB"}]}),
    ("EncodedTextChunk", {"tokens": [1, 2]}),
    ("ImageChunk", {"data": b"\x00", "format": "png"}),
    ("ImageAssetPointerChunk", {"format": "jpeg", "location": "x", "expected_tokens": "4"}),
    (
        "Checkpoint",
        {
            "checkpoint_id": "weights/a",
            "checkpoint_type": "training",
            "time": "2026-01-02T03:04:05Z",
            "tinker_path": "tinker://r/weights/a",
            "size_bytes": "7",
            "unknown": 1,
        },
    ),
    (
        "TrainingRun",
        {
            "training_run_id": "r",
            "base_model": "b",
            "model_owner": "o",
            "is_lora": 1,
            "last_request_time": datetime(2026, 1, 2, tzinfo=UTC),
        },
    ),
    ("Cursor", {"offset": 0, "limit": "10", "total_count": 3}),
    (
        "SampleRequest",
        {"prompt": {"chunks": []}, "sampling_params": {"max_tokens": 1}, "num_samples": 2},
    ),
    ("SessionSearchRequest", {"owner": {"type": "user", "owner_urns": ["u"]}, "limit": 5}),
    ("OptimStepResponse", {"metrics": {"a": 1}}),
    ("SupportedModel", {"model_name": "m"}),
    ("GetServerCapabilitiesResponse", {"supported_models": [{"model_name": "m"}]}),
]


@pytest.mark.parametrize(("name", "given"), SAME)
def test_constructed_and_dumped_as_the_official_type(name: str, given: dict[str, Any]) -> None:
    theirs = getattr(official, name)(**given)
    for ours in (
        getattr(types, name)(**given),
        getattr(types, name).model_validate(given),
        getattr(types, name).model_validate_json(theirs.model_dump_json()),
    ):
        assert ours.model_dump() == theirs.model_dump()
        assert ours.model_dump(mode="json") == theirs.model_dump(mode="json")
        assert json.loads(ours.model_dump_json()) == json.loads(theirs.model_dump_json())
        assert ours.model_dump(exclude_none=True) == theirs.model_dump(exclude_none=True)
        first = next(iter(type(theirs).model_fields))
        assert ours.model_dump(include={first}) == theirs.model_dump(include={first})
        assert ours.model_dump(exclude={first}) == theirs.model_dump(exclude={first})


@pytest.mark.parametrize("name", sorted({name for name, _ in SAME}))
def test_fields_are_those_of_the_official_type(name: str) -> None:
    theirs, ours = getattr(official, name).model_fields, getattr(types, name).model_fields
    for field in set(theirs) & set(ours):
        assert theirs[field].is_required() or not ours[field].is_required(), field
    constants = {"type"}
    beyond = getattr(types, name).beyond_protocol
    assert set(ours) - beyond - constants == set(theirs) - constants


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("ModelInput", {"chunks": [{"type": "video"}]}),
        ("ModelInput", {"chunks": 5}),
        ("EncodedTextChunk", {"tokens": ["one"]}),
        ("EncodedTextChunk", {"tokens": [1], "type": "image"}),
        ("SamplingParams", {"max_tokens": "many"}),
        ("AdamParams", {"learning_rate": 0.1, "unknown": 1}),
        ("Checkpoint", {"checkpoint_id": "a"}),
        ("Cursor", {"offset": "x", "limit": 1, "total_count": 1}),
        ("LoraConfig", {"train_mlp": "maybe"}),
    ],
)
def test_refused_where_the_official_type_refuses(name: str, given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        getattr(official, name).model_validate(given)
    with pytest.raises(ValidationError):
        getattr(types, name).model_validate(given)


def test_an_unknown_sampling_parameter_is_ignored_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="does not know top_q"):
        params = types.SamplingParams(max_tokens=2, top_q=1)  # type: ignore[call-arg]
    assert params == types.SamplingParams(max_tokens=2)


@pytest.mark.parametrize("package", [types, official])
@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("LoraConfig", {"rnk": 1}, "rnk"),
        ("AdamParams", {"learning_rate": 0.1, "lr": 1}, "lr"),
        ("Cursor", {"offset": 1}, "limit"),
        ("ModelInput", {}, "chunks"),
    ],
)
def test_unknown_and_missing_arguments_are_value_errors_as_pydantics(
    package: Any, name: str, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        getattr(package, name)(**given)
    assert isinstance(
        caught.value, ValidationError if package is types else pydantic.ValidationError
    )


def test_other_type_errors_stay() -> None:
    with pytest.raises(TypeError, match="positional"):
        types.Cursor(1, 2, 3)  # type: ignore[misc]
    with pytest.raises(TypeError, match="argument"):
        types.Datum()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="argument"):
        official.Datum()


def test_a_copy_with_changes_is_checked() -> None:
    params = types.SamplingParams(max_tokens=2)
    assert params.model_copy(update={"max_tokens": "3"}).max_tokens == 3
    assert params.max_tokens == 2
    with pytest.raises(ValidationError, match="max_tokens"):
        params.model_copy(update={"max_tokens": 0})
    with pytest.raises(ValidationError, match="no field 'max_token'"):
        params.model_copy(update={"max_token": 3})


def test_samples_are_made_as_the_official_ones() -> None:
    topk = ([[1, 2]], [[-0.5, -1.0]])
    given: dict[str, Any] = {
        "stop_reason": "stop",
        "sequence_id": "q",
        "tokens_np": np.array([1], np.int32),
        "logprobs_np": np.array([-0.5], np.float32),
    }
    theirs = tinker.SampledSequence(
        **given, topk_logprobs_np=_official_topk(*topk), _tokens_list=None
    )
    matrices = types.TopkLogprobs(
        token_ids=np.array(topk[0], np.int32),  # type: ignore[call-arg]
        logprobs=np.array(topk[1], np.float32),
    )
    ours = types.SampledSequence(**given, topk_logprobs_np=matrices)
    for name in ("stop_reason", "sequence_id", "tokens", "logprobs", "topk_logprobs"):
        assert getattr(ours, name) == getattr(theirs, name)
    for name in ("token_ids", "logprobs"):
        ours_np = getattr(ours.topk_logprobs_np, name)
        np.testing.assert_array_equal(ours_np, getattr(theirs.topk_logprobs_np, name))
    by_lists = types.SampledSequence(
        stop_reason="stop", sequence_id="q", tokens=[1], logprobs=[-0.5],
        topk_logprobs=[[(1, -0.5), (2, -1.0)]],
    )  # type: ignore[call-arg]  # fmt: skip
    assert by_lists == ours == types.SampledSequence("stop", "q", [1], [-0.5], matrices)  # type: ignore[misc]
    response = types.SampleResponse([ours], np.array([math.nan, -1.0]))  # type: ignore[misc]
    assert response.prompt_logprobs == [None, -1.0]
    assert types.SampleResponse.model_validate_json(response.model_dump_json()) == response


def _official_topk(ids: list[list[int]], logprobs: list[list[float]]) -> Any:
    from tinker.types.topk_logprobs import TopkLogprobs

    return TopkLogprobs(np.array(ids, np.int32), np.array(logprobs, np.float32))


def test_an_optimizer_of_a_newer_server_can_be_read() -> None:
    given = {"model_data": {}, "model_id": "m"}
    known = types.GetInfoResponse(**given, optimizer_config={"type": "dimuon", "version": 1})
    assert known.optimizer_config == types.DimuonOptimizerConfig()
    assert known.optimizer_config.type == "dimuon"
    newer = types.GetInfoResponse.model_validate(
        {**given, "optimizer_config": {"type": "x", "a": 1}}
    )
    assert newer.optimizer_config == types.OtherOptimizerConfig(type="x", settings={"a": 1})
    assert types.GetInfoResponse(**given).optimizer_config.type == "adamw"


def test_dataclass_helpers_work_on_what_keeps_bytes() -> None:
    import dataclasses

    tensor = types.TensorData([1, 2, 3, 4], "int64", [4])
    assert dataclasses.replace(tensor, shape=[2, 2]).tolist() == [[1, 2], [3, 4]]
    assert dataclasses.asdict(types.EncodedTextChunk([1])) == {
        "tokens": [1],
        "type": "encoded_text",
    }
    with pytest.raises(AttributeError, match="does not change"):
        tensor.data = [1]


def test_pydantic_is_imported_by_nothing_but_pydantic() -> None:
    program = (
        "import sys; from tinkex import types\n"
        "p = types.SamplingParams(max_tokens='3'); p.model_validate_json(p.model_dump_json())\n"
        "p.model_copy(update={'seed': 1}); types.ModelInput.model_json_schema()\n"
        "assert not {'pydantic', 'pydantic_core', 'numpy', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert types.Checkpoint.model_fields["size_bytes"].default is None
