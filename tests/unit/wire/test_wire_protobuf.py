"""The protobuf codec: round trips, references instead of copies, and what it refuses."""

from __future__ import annotations

import math
import sys
from array import array

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tinker.proto import tinker_public_pb2 as pb

from tests.unit.wire import strategies as s
from tinkex import types
from tinkex.errors import APIResponseValidationError, ClientError, ValidationError
from tinkex.wire import protobuf
from tinkex.wire._errors import Malformed
from tinkex.wire._varint import fields, read_varint, signed, to_int32, to_int64, varint
from tinkex.wire.limits import Limits

QUICK = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)


def encode(data: list[types.Datum], **changes: object) -> bytes:
    settings_: dict[str, object] = {
        "model_id": "m",
        "seq_id": 1,
        "loss_fn": "cross_entropy",
        "loss_fn_config": None,
        "forward_only": False,
    }
    return b"".join(
        protobuf.encode_forward_backward_request(data=data, **(settings_ | changes))  # type: ignore[arg-type]
    )


@QUICK
@given(
    data=st.lists(s.DATUMS, max_size=3),
    model_id=s.TEXT,
    seq_id=s.INT32,
    loss_fn=s.TEXT,
    config=s.CONFIGS,
    forward_only=st.booleans(),
)
def test_training_request_survives_the_round_trip(
    data: list[types.Datum],
    model_id: str,
    seq_id: int,
    loss_fn: str,
    config: dict[str, float | str],
    forward_only: bool,
) -> None:
    body = encode(
        data,
        model_id=model_id,
        seq_id=seq_id,
        loss_fn=loss_fn,
        loss_fn_config=config,
        forward_only=forward_only,
    )
    assert protobuf.decode_forward_backward_request(body) == types.ForwardBackwardRequest(
        model_id=model_id,
        seq_id=seq_id,
        data=data,
        loss_fn=loss_fn,
        loss_fn_config=config,
        forward_only=forward_only,
    )
    message = pb.ForwardBackwardRequest()
    message.ParseFromString(body)
    assert len(message.data) == len(data)
    assert message.ByteSize() == len(body)


@QUICK
@given(st.lists(s.DATUMS, max_size=3), s.INT32)
def test_datums_can_be_written_before_the_number_is_known(
    data: list[types.Datum], seq_id: int
) -> None:
    parts = protobuf.encode_datums(data)
    framed = protobuf.frame_forward_backward_request(
        parts,
        model_id="m",
        seq_id=seq_id,
        loss_fn="cross_entropy",
        loss_fn_config=None,
        forward_only=False,
    )
    assert b"".join(framed) == encode(data, seq_id=seq_id)


def test_big_buffers_are_referenced_and_small_ones_joined() -> None:
    tokens = types.EncodedTextChunk(range(1000))
    image = types.ImageChunk(data=bytes(1000), format="png")
    dmel = types.DmelChunk(dmel=bytes(2000))
    weights = types.TensorData([0.5] * 1000)
    model_input = types.ModelInput(chunks=[tokens, image, dmel])
    small = {"a": types.TensorData([1.0]), "b": types.TensorData([2.0])}
    parts = protobuf.encode_datums([types.Datum(model_input, {"weights": weights, **small})])
    for buffer in (tokens.raw, image.data, dmel.dmel, weights.raw):
        assert any(part is buffer for part in parts)
    assert len(parts) == 9  # each of the four buffers with a header before it, and one tail


def test_a_queued_request_costs_little_beyond_the_data() -> None:
    data = [
        types.Datum(
            types.ModelInput.from_ints(range(512)),
            {"target_tokens": list(range(512)), "weights": [1.0] * 512},
        )
        for _ in range(64)
    ]
    held = {id(chunk.raw) for datum in data for chunk in datum.model_input.chunks}  # type: ignore[union-attr]
    held |= {id(tensor.raw) for datum in data for tensor in datum.loss_fn_inputs.values()}
    parts = protobuf.encode_datums(data)
    extra = sum(sys.getsizeof(part) for part in parts if id(part) not in held)
    assert extra < 0.05 * sum(datum.size_bytes for datum in data)


@QUICK
@given(s.outputs())
def test_training_result_survives_the_round_trip(output: types.ForwardBackwardOutput) -> None:
    body = protobuf.encode_forward_backward_output(output)
    assert protobuf.decode_forward_backward_output(body) == output


@QUICK
@given(s.RESPONSES)
def test_sampling_result_survives_the_round_trip(response: types.SampleResponse) -> None:
    body = protobuf.encode_sample_response(response)
    assert protobuf.decode_sample_response(body) == response
    message = pb.SampleResponse()
    message.ParseFromString(body)
    assert message.ByteSize() == len(body)


def test_special_floats_survive() -> None:
    values = types.TensorData([math.inf, -math.inf, math.nan, -0.0], "float32", [4])
    body = encode([types.Datum(types.ModelInput.empty(), {"weights": values})])
    (datum,) = protobuf.decode_forward_backward_request(body).data
    assert datum.loss_fn_inputs["weights"].raw == values.raw


def test_sequence_ids_come_from_the_promise() -> None:
    sequences = [types.SampledSequence(stop_reason="stop") for _ in range(2)]
    body = protobuf.encode_sample_response(types.SampleResponse(sequences=sequences))
    found = protobuf.decode_sample_response(body, ["a", "b"])
    assert [sequence.sequence_id for sequence in found.sequences] == ["a", "b"]
    with pytest.raises(APIResponseValidationError, match="3 sequences were promised and 2 came"):
        protobuf.decode_sample_response(body, ["a", "b", "c"])


def test_empty_logprobs_are_read_as_none() -> None:
    message = pb.SampleResponse(prompt_logprobs=b"")
    message.sequences.add(tokens=b"", logprobs=b"", stop_reason=pb.STOP_REASON_LENGTH)
    message.sequences[0].topk_sampled_logprobs.k = 3
    message.topk_prompt_logprobs.length = 3
    found = protobuf.decode_sample_response(message.SerializeToString())
    assert found.prompt_logprobs is None
    assert found.topk_prompt is None
    (sequence,) = found.sequences
    assert (sequence.tokens, sequence.logprobs, sequence.topk) == ([], None, None)
    assert sequence.stop_reason == "length"


def _record(message: pb.ForwardBackwardOutput, dtype: int, raw: bytes, offsets: list[int]) -> None:
    record = message.loss_fn_outputs.add(num_datums=len(offsets) - 1)
    column = record.fields["x"]
    column.data, column.offsets, column.dtype = raw, array("q", offsets).tobytes(), dtype


def test_narrow_dtypes_are_widened() -> None:
    message = pb.ForwardBackwardOutput(loss_fn_output_type="pkg.module:Inner:Record")
    _record(message, pb.DTYPE_BFLOAT16, b"\xc0\x3f\x00\xc0", [0, 2, 4])
    _record(message, pb.DTYPE_INT32, array("i", [-3, 4, 5]).tobytes(), [0, 8, 12])
    _record(message, pb.DTYPE_FLOAT32, array("f", [2.5]).tobytes(), [0, 4])
    found = protobuf.decode_forward_backward_output(message.SerializeToString())
    assert found.loss_fn_output_type == "Record"
    tensors = [item["x"] for item in found.loss_fn_outputs]
    assert [tensor.data for tensor in tensors] == [[1.5], [-2.0], [-3, 4], [5], [2.5]]
    assert [tensor.dtype for tensor in tensors] == [
        "float32",
        "float32",
        "int64",
        "int64",
        "float32",
    ]


def test_narrow_dtypes_are_widened_in_plain_tensors_too() -> None:
    message = pb.SampleResponse()
    target = message.target_prompt_logprobs
    target.dense, target.dtype = array("i", [7]).tobytes(), pb.DTYPE_INT32
    found = protobuf.decode_sample_response(message.SerializeToString()).target_prompt_logprobs
    assert found is not None
    assert (found.data, found.dtype, found.shape) == ([7], "int64", None)


def test_number_of_datums_wins_over_the_fields() -> None:
    message = pb.ForwardBackwardOutput(loss_fn_output_type="R")
    message.loss_fn_outputs.add(num_datums=3)  # every field was stripped
    assert protobuf.decode_forward_backward_output(message.SerializeToString()).loss_fn_outputs == [
        {},
        {},
        {},
    ]
    _record(message, pb.DTYPE_FLOAT32, array("f", [1, 2]).tobytes(), [0, 4, 8])
    message.loss_fn_outputs[1].num_datums = 1
    assert len(_outputs(message)) == 4
    message.loss_fn_outputs[1].num_datums = 0  # written before the count existed
    assert len(_outputs(message)) == 5


def _outputs(message: pb.ForwardBackwardOutput) -> list[types.LossFnOutput]:
    return protobuf.decode_forward_backward_output(message.SerializeToString()).loss_fn_outputs


def test_result_without_a_type_has_the_default_one() -> None:
    found = protobuf.decode_forward_backward_output(b"")
    assert (found.loss_fn_output_type, found.loss_fn_outputs) == ("ArrayRecord", [])


def test_sparse_results_are_made_dense() -> None:
    sparse = types.TensorData([5.0], "float32", [2, 3], [0, 0, 1], [1])
    output = types.ForwardBackwardOutput(loss_fn_output_type="R", loss_fn_outputs=[{"x": sparse}])
    found = protobuf.decode_forward_backward_output(protobuf.encode_forward_backward_output(output))
    assert found.loss_fn_outputs[0]["x"].tolist() == [[0, 0, 0], [0, 5, 0]]


def test_legacy_config_is_used_where_the_newer_map_is_silent() -> None:
    message = pb.ForwardBackwardRequest(loss_fn="ppo")
    message.loss_fn_config["old"] = 1.5
    message.loss_fn_config["both"] = 1.0
    message.loss_fn_config["zero"] = 0.0
    message.loss_fn_config_v2["both"].number = 2.0
    message.loss_fn_config_v2["text"].text = "x"
    message.loss_fn_config_v2["nothing"].SetInParent()
    found = protobuf.decode_forward_backward_request(message.SerializeToString())
    assert found.loss_fn_config == {"old": 1.5, "both": 2.0, "zero": 0.0, "text": "x"}


def test_fields_of_newer_peers_are_skipped() -> None:
    datum = types.Datum(types.ModelInput.from_ints([1]), {"weights": [1.0]})
    new = b"\x78\x05" + b"\xfa\x01\x02hi" + b"\xf9\x01" + bytes(8) + b"\xfd\x01" + bytes(4)
    body = encode([datum])
    assert protobuf.decode_forward_backward_request(
        new + body + new
    ) == protobuf.decode_forward_backward_request(body)
    assert protobuf.decode_forward_backward_output(new).loss_fn_outputs == []
    assert protobuf.decode_sample_response(new).sequences == []


def test_known_numbers_with_another_wire_type_are_skipped() -> None:
    message = pb.ForwardBackwardRequest(model_id="m")
    body = message.SerializeToString() + b"\x08\x01" + b"\x12\x01x" + b"\x2a\x05\x12\x03abc"
    found = protobuf.decode_forward_backward_request(body)
    assert (found.model_id, found.seq_id, found.loss_fn_config) == ("m", 0, {"": 0.0})


def test_unusual_order_of_a_tensors_fields_is_read() -> None:
    raw = array("f", [1.0, 2.0]).tobytes()
    tensor = b"\x20\x02\x18\x01" + b"\x0a\x08" + raw  # shape unpacked, dtype, then the values
    for content in (tensor, b"\x0a\x00" + tensor, tensor + b"\x7a\x80\x01" + bytes(128)):
        found = protobuf.decode_sample_response(b"\x2a" + varint(len(content)) + content)
        assert found.target_prompt_logprobs == types.TensorData([1.0, 2.0], "float32", [2])


def test_last_of_several_values_wins() -> None:
    raw = array("f", [1.0, 2.0]).tobytes()
    values, csr = b"\x0a\x08" + raw, b"\x12\x04\x12\x02zz"
    content = csr + values + b"\x18\x01"
    found = protobuf.decode_sample_response(b"\x2a" + varint(len(content)) + content)
    assert found.target_prompt_logprobs == types.TensorData([1.0, 2.0])


def test_image_pointer_cannot_be_trained_on() -> None:
    pointer = types.ImageAssetPointerChunk(location="x", format="png")
    datum = types.Datum(types.ModelInput(chunks=[pointer]))
    with pytest.raises(ValidationError, match="but not trained on"):
        protobuf.encode_datums([datum])


@pytest.mark.parametrize("seq_id", [-1, 2**31])
def test_numbers_that_do_not_fit_are_refused(seq_id: int) -> None:
    with pytest.raises(ValidationError, match="seq_id"):
        encode([], seq_id=seq_id)


def _tensor_entry(tensor: bytes) -> bytes:
    entry = b"\x0a\x01w\x12" + varint(len(tensor)) + tensor
    datum = b"\x12" + varint(len(entry)) + entry
    return b"\x1a" + varint(len(datum)) + datum


def _chunk(content: bytes) -> bytes:
    chunk = b"\x0a" + varint(len(content)) + content
    return b"\x1a" + varint(len(chunk)) + chunk


BAD_REQUESTS = {
    "ends in a key": b"\x80",
    "ends in a length": b"\x0a",
    "ends in a value": b"\x0a\x05abc",
    "ends in a number": b"\x10\x80",
    "endless number": b"\x10" + b"\xff" * 11,
    "field 0": b"\x02\x00",
    "group": b"\x0b\x0c",
    "end of group": b"\x0c",
    "text is not UTF-8": b"\x0a\x01\xff",
    "huge length": b"\x0a" + b"\xff" * 9 + b"\x01",
    "nested field leaves its message": b"\x1a\x02\x0a\x7f" + bytes(200),
    "nested number leaves its message": b"\x1a\x01\x80" + bytes(200),
    "tensor without dtype": _tensor_entry(b"\x0a\x04" + bytes(4)),
    "tensor of unknown dtype": _tensor_entry(b"\x0a\x04" + bytes(4) + b"\x18\x09"),
    "tensor with a torn value": _tensor_entry(b"\x0a\x03" + bytes(3) + b"\x18\x01"),
    "tensor that ends early": _tensor_entry(b"\x0a\x09" + bytes(3)),
    "shape does not fit": _tensor_entry(b"\x0a\x04" + bytes(4) + b"\x18\x01\x22\x01\x02"),
    "negative shape": _tensor_entry(b"\x18\x01\x22\x0a" + signed(-1)),
    "too many dimensions": _tensor_entry(b"\x18\x01\x22\x09" + b"\x01" * 9),
    "too many dimensions, unpacked": _tensor_entry(b"\x18\x01" + b"\x20\x01" * 9),
    "huge sparse tensor": _tensor_entry(
        b"\x12\x12\x12\x10" + bytes(16) + b"\x18\x01\x22\x07\x01" + varint(2**40)
    ),
    "torn indices": _tensor_entry(b"\x12\x03\x12\x01a\x18\x01\x22\x02\x01\x01"),
    "indices do not fit": _tensor_entry(b"\x12\x00\x18\x01\x22\x02\x01\x01"),
    "chunk of nothing": _chunk(b""),
    "torn tokens": _chunk(b"\x0a\x05\x0a\x03abc"),
    "image of unknown format": _chunk(b"\x12\x05\x12\x03gif"),
    "span of nothing": b"\x1a\x02\x1a\x00",
    "span of negative length": b"\x1a\x0f\x1a\x0d\x0a\x0b\x18" + signed(-1),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_server_refuses_malformed_requests(name: str) -> None:
    with pytest.raises(ClientError) as caught:
        protobuf.decode_forward_backward_request(BAD_REQUESTS[name])
    assert (caught.value.status, caught.value.code) == (422, "invalid-body")


def test_server_says_where_the_mistake_is() -> None:
    good = encode([types.Datum(types.ModelInput.from_ints([1]))])
    body = good + BAD_REQUESTS["torn tokens"]
    with pytest.raises(ClientError, match=r"data\[1\]: 3 bytes are no whole number"):
        protobuf.decode_forward_backward_request(body)
    body = good + BAD_REQUESTS["tensor of unknown dtype"]
    with pytest.raises(ClientError, match=r"data\[1\]: loss_fn_inputs\['w'\]"):
        protobuf.decode_forward_backward_request(body)


def test_server_stops_at_its_limits() -> None:
    datums = b"\x1a\x00" * 5
    assert len(protobuf.decode_forward_backward_request(datums).data) == 5
    with pytest.raises(ClientError, match="more datums than this server's limit of 4"):
        protobuf.decode_forward_backward_request(datums, limits=Limits(max_datums_per_request=4))
    chunks = b"\x1a\x14" + b"\x0a\x02\x0a\x00" * 5
    assert len(protobuf.decode_forward_backward_request(chunks).data[0].model_input.chunks) == 5
    with pytest.raises(ClientError, match="more chunks than this server's limit of 4"):
        protobuf.decode_forward_backward_request(chunks, limits=Limits(max_chunks_per_input=4))


MANY_FIELDS = {
    "of the request": b"\x10\x01" * 20,
    "of numbers it does not know": b"\x78\x01" * 20,
    "of its config": b"\x2a\x00" * 20,
    "of nested messages": (b"\x1a\x08" + b"\x0a\x02\x0a\x00" * 2) * 5,
    "of spans": b"\x1a\x3c" + b"\x1a\x04\x0a\x02\x10\x01" * 10,
    "of a tensor": pb.ForwardBackwardRequest(
        data=[pb.Datum(loss_fn_inputs={"w": pb.Tensor(dtype=pb.DTYPE_FLOAT32)})]
    ).SerializeToString()
    + b"\x1a\x56\x12\x54\x12\x52"
    + b"\x18\x01" * 41,
}


@pytest.mark.parametrize("name", MANY_FIELDS)
def test_server_bounds_the_fields_of_a_body_in_all_its_messages(name: str) -> None:
    body = MANY_FIELDS[name]
    message = r"more than 10 protobuf fields, this server's limit \(max_protobuf_fields\)"
    with pytest.raises(ClientError, match=message) as caught:
        protobuf.decode_forward_backward_request(body, limits=Limits(max_protobuf_fields=10))
    assert caught.value.status == 422
    protobuf.decode_forward_backward_request(body, limits=Limits(max_protobuf_fields=100))


def test_a_request_with_as_many_fields_as_allowed_is_read() -> None:
    body = b"\x10\x01" * 10
    limits = Limits(max_protobuf_fields=10)
    assert protobuf.decode_forward_backward_request(body, limits=limits).seq_id == 1
    with pytest.raises(ClientError, match="more than 10 protobuf fields"):
        protobuf.decode_forward_backward_request(body + b"\x10\x01", limits=limits)


def _result(column: pb.BatchedTensor, num_datums: int = 0) -> bytes:
    message = pb.ForwardBackwardOutput()
    record = message.loss_fn_outputs.add(num_datums=num_datums)
    record.fields["x"].CopyFrom(column)
    return message.SerializeToString()


def _column(offsets: list[int], data: bytes = bytes(8), trailing: tuple[int, ...] = ()) -> bytes:
    return _result(
        pb.BatchedTensor(
            data=data,
            offsets=array("q", offsets).tobytes(),
            dtype=pb.DTYPE_FLOAT32,
            trailing_shape=trailing,
        )
    )


BAD_RESULTS = {
    "offset beyond the data": _column([0, 12]),
    "offsets that fall": _column([4, 0]),
    "negative offset": _column([-4, 4]),
    "torn offset": _column([0, 3, 8]),
    "trailing shape that does not fit": _column([0, 8], trailing=(3,)),
    "negative trailing shape": _column([0, 8], trailing=(-1,)),
    "too many trailing dimensions": _column([0, 8], trailing=(1,) * 8),
    "torn offsets": _result(pb.BatchedTensor(offsets=b"abc", dtype=pb.DTYPE_FLOAT32)),
    "no dtype": _result(pb.BatchedTensor(data=bytes(4))),
    "more datums than tensors": _result(
        pb.BatchedTensor(offsets=bytes(8), dtype=pb.DTYPE_FLOAT32), num_datums=1
    ),
    "absurd number of datums": b"\x12\x06\x18" + varint(2**34),
    "not a message": b"\x12",
}


@pytest.mark.parametrize("name", BAD_RESULTS)
def test_client_refuses_malformed_training_results(name: str) -> None:
    with pytest.raises(APIResponseValidationError, match="ForwardBackwardOutput"):
        protobuf.decode_forward_backward_output(BAD_RESULTS[name])


BAD_SAMPLES = {
    "unknown stop reason": b"\x0a\x02\x08\x02",
    "torn tokens": b"\x0a\x03\x12\x01a",
    "torn logprobs": b"\x0a\x03\x1a\x01a",
    "torn prompt logprobs": b"\x12\x01a",
    "top-k that does not fill its rows": b"\x1a\x04\x18\x01\x20\x01",
    "absurd top-k": b"\x1a\x0c\x18" + varint(2**31) + b"\x20" + varint(2**31),
    "alternatives without logprobs": b"\x32\x04\x0a\x02\x18\x01",
    "not a message": b"\x0a",
}


@pytest.mark.parametrize("name", BAD_SAMPLES)
def test_client_refuses_malformed_samples(name: str) -> None:
    with pytest.raises(APIResponseValidationError, match="SampleResponse"):
        protobuf.decode_sample_response(BAD_SAMPLES[name])


@given(st.integers(0, 2**64 - 1), st.binary(max_size=3))
def test_varints_survive(value: int, tail: bytes) -> None:
    raw = varint(value)
    assert read_varint(raw + tail, 0, len(raw)) == (value, len(raw))
    for cut in range(len(raw)):
        with pytest.raises(Malformed):
            read_varint(raw + tail, 0, cut)


@given(st.integers(-(2**63), 2**63 - 1))
def test_signed_numbers_survive(value: int) -> None:
    found, _ = read_varint(signed(value), 0, 10)
    assert to_int64(found) == value
    assert to_int32(found) == (value + 2**31) % 2**32 - 2**31


@given(st.binary(max_size=40))
def test_fields_never_leave_their_message(body: bytes) -> None:
    try:
        for key, a, b in fields(body + b"\x0a\x05hello", 0, len(body)):
            assert key >= 8
            assert b <= len(body)
            assert key & 7 == 0 or a <= b
    except Malformed:
        pass
