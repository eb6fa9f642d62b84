"""JSON bodies: every type survives the round trip, and what is wrong is named."""

from __future__ import annotations

import contextlib
import datetime as dt
import pickle
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.wire import strategies as s
from tinkex import types
from tinkex.errors import APIResponseValidationError, ClientError, ValidationError
from tinkex.wire import json
from tinkex.wire.limits import Limits

BUILT = (
    types.Datum,
    types.ForwardBackwardRequest,
    types.ModelInput,
    types.SampleRequest,
    types.SamplingParams,
    types.TelemetrySendRequest,
)
PLAIN = [struct for struct in s.STRUCTS if struct not in BUILT]
QUICK = settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow], deadline=None)


@pytest.mark.parametrize("struct", PLAIN, ids=lambda struct: struct.__name__)
@QUICK
@given(data=st.data())
def test_every_type_survives_the_round_trip(struct: Any, data: st.DataObject) -> None:
    value = data.draw(s.values_of(struct))
    body = json.encode(value)
    assert json.decode(body, struct) == value
    assert json.decode_request(body, struct) == value
    fields = msgspec.json.decode(body)
    fields["from_the_future"] = {"a": [1]}
    assert json.decode(msgspec.json.encode(fields), struct) == value


REQUESTS = st.builds(
    types.SampleRequest,
    num_samples=st.integers(1, 5),
    prompt=s.MODEL_INPUTS,
    sampling_params=s.SAMPLING_PARAMS,
    sampling_session_id=s.TEXT,
    seq_id=s.COUNT,
    prompt_logprobs=st.none() | st.booleans(),
    topk_prompt_logprobs=s.COUNT,
    target_prompt_logprobs=st.none() | s.ANY_TENSOR,
    prompt_logprobs_last_n=st.none() | s.COUNT,
)


@QUICK
@given(REQUESTS)
def test_sample_request_survives_the_round_trip(request: types.SampleRequest) -> None:
    assert json.decode_request(json.encode(request), types.SampleRequest) == request


@QUICK
@given(s.MODEL_INPUTS, s.SAMPLING_PARAMS, s.DATUMS)
def test_parts_of_requests_survive_alone(
    prompt: types.ModelInput, params: types.SamplingParams, datum: types.Datum
) -> None:
    assert json.decode(json.encode(prompt), types.ModelInput) == prompt
    assert json.decode(json.encode(params), types.SamplingParams) == params
    plain = {"model_input": datum.model_input, "loss_fn_inputs": {}}
    assert json.decode(json.encode(plain), types.Datum) == types.Datum(datum.model_input)


def test_telemetry_events_of_every_kind_survive() -> None:
    common: dict[str, Any] = {
        "event_id": "e",
        "event_session_index": 0,
        "severity": "INFO",
        "timestamp": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    }
    batch = types.TelemetrySendRequest(
        events=[
            types.SessionStartEvent(**common),
            types.SessionEndEvent(duration="0:00:01", **common),
            types.UnhandledExceptionEvent(error_message="m", error_type="T", **common),
            types.GenericEvent(event_name="n", event_data={"a": 1}, **common),
        ],
        platform="Linux",
        sdk_version="1",
        session_id="s",
        process_uuid="p",
    )
    assert json.decode_request(json.encode(batch), types.TelemetrySendRequest) == batch
    assert b"traceback" not in json.encode(batch)


@pytest.mark.parametrize("event", [{"event": "OTHER"}, {"event": 3}, {}])
def test_unknown_telemetry_event_is_refused(event: dict[str, Any]) -> None:
    body = msgspec.json.encode(
        {"events": [event], "platform": "", "sdk_version": "", "session_id": "", "process_uuid": ""}
    )
    with pytest.raises(ClientError, match="no telemetry event"):
        json.decode_request(body, types.TelemetrySendRequest)


def test_nulls_are_left_out_of_requests_but_for_two() -> None:
    assert json.encode(types.LoraConfig(rank=1)) == (
        b'{"rank":1,"train_unembed":true,"train_mlp":true,"train_attn":true}'
    )
    assert json.encode(types.SetTTLRequest(ttl_seconds=None)) == b'{"ttl_seconds":null}'
    finish = types.FinishSessionRequest(reason=types.ClientSessionFinishErrored())
    assert json.encode(finish) == b'{"reason":{"type":"errored"},"detail":null}'
    assert json.encode(types.AuthTokenRequest()) == b"{}"


def test_bytes_travel_as_base64_and_tensors_as_lists() -> None:
    image = types.ImageChunk(data=b"\x00\xff\xfe", format="png")
    assert b'"data":"AP/+"' in json.encode(image)
    tensor = types.TensorData([1, 2], "int64", [2, 3], [0, 1, 2], [0, 2])
    assert json.encode(tensor) == (
        b'{"data":[1,2],"dtype":"int64","shape":[2,3],'
        b'"sparse_crow_indices":[0,1,2],"sparse_col_indices":[0,2]}'
    )
    assert json.decode(json.encode(tensor), types.TensorData) == tensor


def test_results_with_tensors_can_be_read() -> None:
    output = types.ForwardBackwardOutput(
        loss_fn_output_type="R", loss_fn_outputs=[{"logprobs": types.TensorData([0.5])}]
    )
    assert json.decode(json.encode(output), types.ForwardBackwardOutput) == output


class Odd:
    """Has no JSON form."""


@pytest.mark.parametrize(
    "metadata",
    [{"a": Odd()}, {(1, 2): "x"}, {"a": "\ud800"}],
    ids=["class", "key", "text"],
)
def test_metadata_without_a_json_form_is_the_users_error(metadata: dict[Any, Any]) -> None:
    request = types.CreateSessionRequest(tags=[], user_metadata=metadata, sdk_version="1")
    with pytest.raises(ValidationError, match="cannot be written as JSON"):
        json.encode(request)


def test_metadata_that_holds_itself_is_the_users_error() -> None:
    loop: dict[str, Any] = {}
    loop["again"] = loop
    with pytest.raises(ValidationError, match="cannot be written as JSON"):
        json.encode(types.CreateSessionRequest(tags=[], user_metadata=loop, sdk_version="1"))


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{}", "session_id"),
        (b'{"session_id":1}', "session_id"),
        (b'{"session_id":"s","info_message":[]}', "info_message"),
        (b"[]", "object"),
        (b"not json", "malformed"),
        (b"", "truncated"),
        (b'{"session_id":"\xff"}', "utf-8"),
    ],
)
def test_the_error_of_a_wrong_answer_has_type_and_field(body: bytes, field: str) -> None:
    with pytest.raises(APIResponseValidationError, match="CreateSessionResponse") as caught:
        json.decode(body, types.CreateSessionResponse)
    assert field in str(caught.value)
    assert caught.value.blame == "server"


@pytest.mark.parametrize(
    ("type_", "body", "field"),
    [
        (types.CreateModelRequest, b'{"session_id":"s","model_seq_id":0}', "base_model"),
        (
            types.CreateModelRequest,
            b'{"session_id":"s","model_seq_id":0,"base_model":"b","lora_config":{"rank":"8"}}',
            "lora_config.rank",
        ),
        (
            types.CreateModelRequest,
            b'{"session_id":"s","model_seq_id":0,"base_model":"b","lora_config":{"rank":0}}',
            "lora_config",
        ),
        (
            types.CreateModelRequest,
            b'{"session_id":"s","model_seq_id":-1,"base_model":"b"}',
            "model_seq_id",
        ),
        (
            types.CreateModelRequest,
            b'{"session_id":"s","model_seq_id":0,"base_model":"b","optimizer_config":{"type":"x"}}',
            "optimizer_config.type",
        ),
        (types.OptimStepRequest, b'{"model_id":"m","seq_id":99999999999999999999}', "seq_id"),
        (types.OptimStepRequest, b'{"model_id":"m"}', ""),
        (types.CreateSessionRequest, b'{"tags":["a",1],"sdk_version":"1"}', "tags[1]"),
        (types.SessionSearchRequest, b'{"limit":201}', ""),
        (types.SessionSearchRequest, b'{"statuses":[]}', ""),
        (types.SessionSearchRequest, b'{"owner":{"type":"user","owner_urns":[]}}', "owner"),
        (types.GetInfoRequest, b"{", ""),
    ],
)
def test_server_names_the_offending_field(type_: Any, body: bytes, field: str) -> None:
    with pytest.raises(ClientError) as caught:
        json.decode_request(body, type_)
    error = caught.value
    assert (error.status, error.code) == (422, "invalid-body")
    assert error.field == field  # type: ignore[attr-defined]
    assert field in error.message
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.status, copy.code, copy.message) == (422, "invalid-body", error.message)


def _sample_body(**changes: Any) -> bytes:
    body: dict[str, Any] = {"prompt": {"chunks": []}, "sampling_params": {"max_tokens": 1}}
    return msgspec.json.encode(body | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampling_params": {"typical_p": 0.1}}, "typical_p"),
        (
            {"sampling_params": {"min_p": 1.5}},
            r"min_p=1.5 must be at least 0 and at most 1 \(at sampling_params\)",
        ),
        ({"sampling_params": {"logit_bias": {"x": 1}}}, "logit_bias"),
        ({"sampling_params": {"temperature": -1}}, "temperature"),
        ({"sampling_params": {"stop": ["a", 1]}}, "stop"),
        ({"sampling_params": {"stop": 3}}, "stop"),
        ({"num_samples": 0}, "num_samples"),
        ({"prompt": {"chunks": [{"type": "video"}]}}, "video"),
        ({"prompt": {"chunks": [{"tokens": [1]}]}}, "type"),
        ({"prompt": {"chunks": [{"type": "encoded_text", "tokens": [-1]}]}}, "negative"),
        ({"prompt": {"chunks": [{"type": "encoded_text", "tokens": [2**40]}]}}, "32 bits"),
        ({"prompt": {"chunks": [{"type": "encoded_text", "tokens": ["a"]}]}}, "tokens"),
        ({"prompt": {"chunks": [{"type": "image", "data": "!", "format": "png"}]}}, "data"),
        ({"prompt": {"chunks": [{"type": "image", "data": "", "format": "gif"}]}}, "gif"),
        ({"target_prompt_logprobs": {"data": [1], "dtype": "int8"}}, "dtype"),
        ({"target_prompt_logprobs": {"data": [1], "dtype": "int64", "shape": [2]}}, "shape"),
        ({"target_prompt_logprobs": {"data": [None], "dtype": "int64"}}, "int64"),
        ({"target_prompt_logprobs": {"data": [1.5], "dtype": "int64"}}, "int64"),
        ({"target_prompt_logprobs": {"data": ["1"], "dtype": "int64"}}, "str"),
        (
            {
                "target_prompt_logprobs": {
                    "data": [],
                    "dtype": "int64",
                    "shape": [1, 2**40],
                    "sparse_crow_indices": [0, 0],
                    "sparse_col_indices": [],
                }
            },
            "above this server",
        ),
    ],
)
def test_server_refuses_wrong_sampling_requests(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ClientError, match=message):
        json.decode_request(_sample_body(**changes), types.SampleRequest)


def test_stop_keeps_the_difference_between_absent_and_empty() -> None:
    absent = json.decode_request(_sample_body(), types.SampleRequest)
    empty = json.decode_request(_sample_body(sampling_params={"stop": []}), types.SampleRequest)
    assert absent.sampling_params.stop is None
    assert empty.sampling_params.stop == []


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_depth_is_bounded(opening: bytes) -> None:
    body = b'{"tags":[],"sdk_version":"1","user_metadata":{"x":' + opening * 40
    with pytest.raises(ClientError, match="nested deeper than 32"):
        json.decode_request(body, types.CreateSessionRequest)


def test_depth_counts_nesting_and_not_brackets() -> None:
    metadata = {"brackets in text": '[{"' * 50 + "\\", "flat": [[1]] * 50}
    request = types.CreateSessionRequest(tags=[], user_metadata=metadata, sdk_version="1")
    assert json.decode_request(json.encode(request), types.CreateSessionRequest) == request


def test_depth_limit_can_be_changed() -> None:
    body = b'{"tags":[],"sdk_version":"1","user_metadata":{"x":[[[]]]}}'
    json.decode_request(body, types.CreateSessionRequest, limits=Limits(max_json_depth=5))
    with pytest.raises(ClientError, match="deeper than 4"):
        json.decode_request(body, types.CreateSessionRequest, limits=Limits(max_json_depth=4))


def test_depth_check_is_linear_on_unterminated_strings() -> None:
    body = b'{"a":"' + b'\\"[' * 300_000
    with pytest.raises(ClientError, match="invalid-body"):
        json.decode_request(body, types.CreateSessionRequest)


def test_answers_nested_too_deeply_are_refused_by_the_client_too() -> None:
    body = b'{"entries":[{"timestamp":"2026-01-01T00:00:00Z","event":"e","event_details":{"a":'
    with pytest.raises(APIResponseValidationError, match="nested too deeply"):
        json.decode(body + b"[" * 100_000, types.AuditLogResponse)


class WithOdd(msgspec.Struct):
    """A type the codec was never taught."""

    odd: Odd


def test_types_without_a_json_form_are_our_own_mistake() -> None:
    with pytest.raises(NotImplementedError, match="Odd"):
        json.decode(b'{"odd":1}', WithOdd)


def test_unknown_error_categories_count_as_unknown() -> None:
    found = json.decode(b'{"error":null,"category":"martian"}', types.RequestFailedResponse)
    assert found.category == "unknown"
    assert json.decode(b'{"error":"x"}', types.RequestFailedResponse).category == "unknown"
    assert json.decode(
        b'{"error":"x","category":"user"}', types.RequestFailedResponse
    ).category == ("user")


def test_timestamps_are_datetimes() -> None:
    body = b'{"urls":{},"expires":"2026-01-02T03:04:05.5+02:00"}'
    expires = json.decode(body, types.ExternalWeightsUrlsResponse).expires
    assert expires == dt.datetime(2026, 1, 2, 1, 4, 5, 500_000, tzinfo=dt.UTC)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60) | s.JSON_VALUES.map(msgspec.json.encode))
def test_arbitrary_bytes_give_typed_errors_only(body: bytes) -> None:
    for type_ in (types.SampleRequest, types.CreateModelRequest, types.SessionSearchRequest):
        with contextlib.suppress(ClientError):
            json.decode_request(body, type_)
    with contextlib.suppress(APIResponseValidationError):
        json.decode(body, types.TrainingRunsResponse)
