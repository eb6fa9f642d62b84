"""The JSON forms older clients speak."""

from __future__ import annotations

import math
from array import array

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.wire import strategies as s
from tests.unit.wire.test_wire_official_answers import FULL
from tinkex import types
from tinkex.errors import APIResponseValidationError, ClientError
from tinkex.wire import legacy_json
from tinkex.wire.limits import Limits

QUICK = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow], deadline=None)
DATUMS = st.builds(types.Datum, s.MODEL_INPUTS, st.dictionaries(s.TEXT, s.ANY_TENSOR, max_size=2))
REQUESTS = st.builds(
    types.ForwardBackwardRequest,
    model_id=s.TEXT,
    seq_id=s.INT32,
    data=st.lists(DATUMS, max_size=2),
    loss_fn=s.TEXT,
    loss_fn_config=st.dictionaries(
        s.TEXT, st.floats(allow_nan=False, allow_infinity=False) | s.TEXT, max_size=2
    ),
    forward_only=st.booleans(),
)


@QUICK
@given(REQUESTS)
def test_request_survives_the_round_trip(request: types.ForwardBackwardRequest) -> None:
    body = legacy_json.encode_forward_backward_request(request)
    assert legacy_json.decode_forward_backward_request(body) == request


def test_request_of_an_old_client_is_read() -> None:
    body = (
        b'{"forward_backward_input":{"data":[{"model_input":{"chunks":[{"type":"encoded_text",'
        b'"tokens":[1,2]}]},"loss_fn_inputs":{"target_tokens":{"data":[2,3],"dtype":"int64",'
        b'"shape":[2]},"weights":{"data":[1,0.5],"dtype":"float32","shape":[2]}}}],'
        b'"loss_fn":"cross_entropy"},"model_id":"m","seq_id":4}'
    )
    assert legacy_json.decode_forward_backward_request(body) == types.ForwardBackwardRequest(
        model_id="m",
        seq_id=4,
        data=[
            types.Datum(
                types.ModelInput.from_ints([1, 2]), {"target_tokens": [2, 3], "weights": [1, 0.5]}
            )
        ],
        loss_fn="cross_entropy",
    )


def test_forward_of_a_client_without_numbers_is_read() -> None:
    body = b'{"forward_input":{"data":[],"loss_fn":"ppo","loss_fn_config":null},"model_id":"m"}'
    found = legacy_json.decode_forward_backward_request(body)
    assert (found.forward_only, found.seq_id, found.loss_fn_config) == (True, 0, {})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"model_id":"m"}', "neither forward_backward_input nor forward_input"),
        (b'{"forward_input":{"data":[],"loss_fn":"x"}}', "model_id"),
        (b'{"forward_input":{"data":[{}],"loss_fn":"x"},"model_id":"m"}', "model_input"),
        (b"{", "truncated"),
        (b'{"forward_input":' + b"[" * 50, "nested"),
    ],
)
def test_wrong_requests_are_refused(body: bytes, message: str) -> None:
    with pytest.raises(ClientError, match=message) as caught:
        legacy_json.decode_forward_backward_request(body)
    assert caught.value.status == 422


def test_number_of_datums_is_limited() -> None:
    datum = b'{"model_input":{"chunks":[]}}'
    body = b'{"forward_input":{"data":[%b,%b],"loss_fn":"x"},"model_id":"m"}' % (datum, datum)
    assert len(legacy_json.decode_forward_backward_request(body).data) == 2
    with pytest.raises(ClientError, match="2 datums, above this server's limit of 1"):
        legacy_json.decode_forward_backward_request(body, limits=Limits(max_datums_per_request=1))


@QUICK
@given(s.outputs())
def test_training_result_survives_the_round_trip(output: types.ForwardBackwardOutput) -> None:
    finite = {name: value for name, value in output.metrics.items() if math.isfinite(value)}
    output = msgspec.structs.replace(output, metrics=finite)
    body = legacy_json.encode_forward_backward_output(output)
    assert set(msgspec.json.decode(body)) == {"loss_fn_output_type", "loss_fn_outputs", "metrics"}
    assert legacy_json.decode_forward_backward_output(body) == output


def test_nan_is_written_as_null_and_read_back() -> None:
    tensor = types.TensorData([math.nan, 1.0], "float32", [2])
    output = types.ForwardBackwardOutput(loss_fn_output_type="R", loss_fn_outputs=[{"x": tensor}])
    body = legacy_json.encode_forward_backward_output(output)
    assert b'"data":[null,1.0]' in body
    (found,) = legacy_json.decode_forward_backward_output(body).loss_fn_outputs
    assert math.isnan(found["x"].data[0])


def test_sampling_result_has_the_old_form() -> None:
    fields = msgspec.json.decode(legacy_json.encode_sample_response(FULL))
    assert fields["type"] == "sample"
    assert fields["sequences"][0]["tokens"] == [1, 2]
    assert fields["sequences"][0]["logprobs"] == [-1.0, -2.0]
    assert fields["sequences"][1] == {"stop_reason": "length", "tokens": []}
    assert fields["prompt_logprobs"] == [None, -0.25]
    assert fields["topk_prompt_logprobs"] == [[[0, -0.0]], [[1, -0.5]]]
    assert fields["prompt_cache_hit_tokens"] == 5


@QUICK
@given(s.RESPONSES)
def test_sampling_result_survives_but_for_what_is_new(response: types.SampleResponse) -> None:
    old = msgspec.structs.replace(response, target_prompt_logprobs=None, prompt_alt_tokens=None)
    found = legacy_json.decode_sample_response(legacy_json.encode_sample_response(response))
    assert found == old


def test_ragged_and_empty_rows_of_top_k_are_padded() -> None:
    body = (
        b'{"sequences":[{"stop_reason":"stop","tokens":[5],"topk_logprobs":[[[5,-0.5]],null]}],'
        b'"prompt_logprobs":[null,-1],"topk_prompt_logprobs":[null,[[1,-1],[2,-2]],[[3,-3]]]}'
    )
    found = legacy_json.decode_sample_response(body)
    assert found.prompt_logprobs == [None, -1.0]
    assert found.topk_prompt_logprobs == [None, [(1, -1.0), (2, -2.0)], [(3, -3.0)]]
    assert found.sequences[0].topk_logprobs == [[(5, -0.5)], None]
    assert found.sequences[0].tokens_raw == array("i", [5]).tobytes()
    empty = legacy_json.decode_sample_response(b'{"sequences":[],"topk_prompt_logprobs":[null]}')
    assert empty.topk_prompt is None


@pytest.mark.parametrize(
    "body",
    [
        b'{"sequences":[{"stop_reason":"eos","tokens":[]}]}',
        b'{"sequences":[{"stop_reason":"stop","tokens":[-1]}]}',
        b'{"sequences":[{"stop_reason":"stop","tokens":[99999999999]}]}',
        b"[]",
    ],
)
def test_wrong_sampling_results_are_refused(body: bytes) -> None:
    with pytest.raises(APIResponseValidationError, match="SampleResponse"):
        legacy_json.decode_sample_response(body)


def test_wrong_training_results_are_refused() -> None:
    with pytest.raises(APIResponseValidationError, match="loss_fn_outputs"):
        legacy_json.decode_forward_backward_output(b'{"loss_fn_output_type":"R"}')
