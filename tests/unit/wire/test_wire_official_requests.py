"""Our request bodies are, byte for byte, those of the official client for the same calls."""

from __future__ import annotations

from datetime import UTC

import msgspec
import pytest
from tinker.lib.public_interfaces.training_client import _estimate_datum_bytes_count_proto
from tinker.proto import tinker_public_pb2 as pb

from tests.unit.wire.official_calls import DATA, MEDIA, PATH, SAMPLER, SEARCH, TEXT, Recorded
from tinkex import types
from tinkex.wire import json, protobuf

MODEL = "s1:train:0"
TTL = f"training_runs/{MODEL}/checkpoints/weights/c1/ttl"
PARAMS = types.SamplingParams(max_tokens=4)
SAMPLING: dict[str, object] = {
    "prompt": TEXT[0],
    "sampling_session_id": "s1:sample:0",
    "record_stability_info": False,
    "prompt_logprobs": False,
}


def sample(**changes: object) -> types.SampleRequest:
    return types.SampleRequest(**(SAMPLING | {"sampling_params": PARAMS} | changes))  # type: ignore[arg-type]


CASES: list[tuple[str, int, object]] = [
    ("client/config", 0, types.ClientConfigRequest(sdk_version="0.36.0")),
    ("client/dynamic_config", 0, types.ClientConfigRequest(sdk_version="0.36.0")),
    (
        "create_session",
        0,
        types.CreateSessionRequest(
            tags=[],
            user_metadata={"exp": "é1"},
            sdk_version="0.36.0",
            project_id="p",
            display_name="loop",
        ),
    ),
    (
        "create_session",
        1,
        types.CreateSessionRequest(tags=[], user_metadata={}, sdk_version="0.36.0"),
    ),
    (
        "create_model",
        0,
        types.CreateModelRequest(
            session_id="s1",
            model_seq_id=0,
            base_model="base",
            user_metadata={"a": "b"},
            lora_config=types.LoraConfig(rank=8, seed=1, train_mlp=False),
        ),
    ),
    (
        "create_model",
        1,
        types.CreateModelRequest(
            session_id="s1",
            model_seq_id=1,
            base_model="base",
            lora_config=types.LoraConfig(),
            optimizer_config=types.DimuonOptimizerConfig(),
        ),
    ),
    (
        "optim_step",
        0,
        types.OptimStepRequest(model_id=MODEL, seq_id=17, adam_params=types.AdamParams()),
    ),
    (
        "optim_step",
        1,
        types.OptimStepRequest(
            model_id=MODEL, seq_id=18, optimizer_params=types.DimuonParams(learning_rate=0.001)
        ),
    ),
    (
        "save_weights",
        0,
        types.SaveWeightsRequest(
            model_id=MODEL,
            path="c1",
            seq_id=19,
            ttl_seconds=7200,
            overwrite=True,
            user_metadata={"a": "b"},
        ),
    ),
    ("save_weights", 1, types.SaveWeightsRequest(model_id=MODEL, path="c2", seq_id=20)),
    (
        "save_weights_for_sampler",
        0,
        types.SaveWeightsForSamplerRequest(model_id=MODEL, path="s", seq_id=21, ttl_seconds=3600),
    ),
    (
        "save_weights_external",
        0,
        types.SaveWeightsExternalRequest(
            model_id=MODEL, path="x", seq_id=22, age_encryption_recipients=["age1"]
        ),
    ),
    (
        "load_weights",
        0,
        types.LoadWeightsRequest(
            model_id=MODEL, seq_id=23, path=PATH, optimizer=False, weights_access_token="other"
        ),
    ),
    (
        "load_weights",
        1,
        types.LoadWeightsRequest(model_id=MODEL, seq_id=24, path=PATH, optimizer=True),
    ),
    (
        "load_weights",
        2,
        types.LoadWeightsRequest(
            session_id="s1", model_seq_id=0, user_metadata={"k": "v"}, path=PATH, optimizer=True
        ),
    ),
    ("get_info", 0, types.GetInfoRequest(model_id=MODEL)),
    (
        "create_sampling_session",
        0,
        types.CreateSamplingSessionRequest(
            session_id="s1", sampling_session_seq_id=0, model_path=SAMPLER
        ),
    ),
    (
        "create_sampling_session",
        1,
        types.CreateSamplingSessionRequest(
            session_id="s1", sampling_session_seq_id=1, base_model="base"
        ),
    ),
    (
        "join_sampling_session",
        0,
        types.JoinSamplingSessionRequest(sampling_session_id="s1:sample:0"),
    ),
    ("asample", 0, sample(seq_id=0)),
    (
        "asample",
        1,
        sample(seq_id=1, prompt_logprobs=True, sampling_params=types.SamplingParams(max_tokens=1)),
    ),
    (
        "asample",
        2,
        sample(
            seq_id=2,
            prompt=MEDIA[0],
            sampling_params=types.SamplingParams(
                max_tokens=2, seed=7, stop=["\n", "é"], temperature=0.5, top_k=3
            ),
            prompt_logprobs=True,
            topk_prompt_logprobs=2,
            topk_sample_logprobs=3,
        ),
    ),
    (
        "asample",
        3,
        sample(
            seq_id=3,
            sampling_params=types.SamplingParams(max_tokens=2, stop=[5, 6], top_p=0.25),
            prompt_logprobs=True,
            target_prompt_logprobs=types.TensorData([1, -1], "int64", [2, 1]),
            prompt_logprobs_last_n=2,
        ),
    ),
    ("asample", 4, sample(seq_id=4, sampling_params=types.SamplingParams(max_tokens=2, stop="x"))),
    ("asample", 5, sample(seq_id=5, sampling_params=types.SamplingParams(max_tokens=2, stop=[]))),
    ("asample", 7, sample(seq_id=3_000_000_000)),
    (
        "retrieve_future",
        0,
        types.FutureRetrieveRequest(request_id="create_model", allow_metadata_only=True),
    ),
    (
        "retrieve_futures",
        0,
        types.FuturesRetrieveRequest(
            target=types.SamplingSessionFuturesTarget(sampling_session_id="s1:sample:0")
        ),
    ),
    (
        "retrieve_futures",
        1,
        types.FuturesRetrieveRequest(
            target=types.SamplingSessionFuturesTarget(sampling_session_id="s1:sample:0"),
            prev_cursor=1,
            retrieved_request_ids=["asample"],
        ),
    ),
    ("weights_info", 0, types.WeightsInfoRequest(tinker_path=PATH)),
    (
        "copy_weights",
        0,
        types.CopyWeightsRequest(destination_project_id="p2", source_path=PATH, ttl_seconds=3600),
    ),
    (
        TTL,
        0,
        types.SetTTLRequest(ttl_seconds=7200),
    ),
    (
        TTL,
        1,
        types.SetTTLRequest(ttl_seconds=None),
    ),
    ("sessions/s1/project", 0, types.AssignProjectRequest(project_id="p3")),
    ("sessions/search", 0, SEARCH[0]),
    ("sessions/search", 1, types.SessionSearchRequest()),
    (
        "sessions/s1/finish",
        0,
        types.FinishSessionRequest(reason=types.ClientSessionFinishInterrupted(), detail="by hand"),
    ),
    (
        "sessions/s1/finish",
        1,
        types.FinishSessionRequest(reason=types.ClientSessionFinishSuccess()),
    ),
]
_IDS = [f"{path}-{index}" for path, index, _ in CASES]


@pytest.mark.parametrize(("path", "index", "ours"), CASES, ids=_IDS)
def test_json_body_is_what_the_official_client_sends(
    recorded: Recorded, path: str, index: int, ours: object
) -> None:
    assert json.encode(ours) == recorded.body(path, index)


@pytest.mark.parametrize(("path", "index", "ours"), CASES, ids=_IDS)
def test_json_body_of_the_official_client_is_read_as_ours(
    recorded: Recorded, path: str, index: int, ours: object
) -> None:
    assert json.decode_request(recorded.body(path, index), type(ours)) == ours


def test_custom_loss_is_read_and_written_unchanged(recorded: Recorded) -> None:
    body = recorded.body("create_custom_loss", 0)
    request = json.decode_request(body, types.CreateCustomLossRequest)
    assert [entry.name for entry in request.inputs] == ["logprobs", "weights"]
    assert request.graph.nodes[-1].op == "output"
    assert json.encode(request) == body


def test_telemetry_is_read_and_written_unchanged(recorded: Recorded) -> None:
    body = recorded.body("telemetry", 0)
    batch = json.decode_request(body, types.TelemetrySendRequest)
    assert isinstance(batch.events[0], types.SessionStartEvent)
    assert batch.events[0].timestamp.tzinfo is UTC
    assert json.encode(batch) == body


def test_every_json_body_the_official_client_sent_is_covered(recorded: Recorded) -> None:
    covered = {path for path, _, _ in CASES} | {"create_custom_loss", "telemetry"}
    sent = {call.path for call in recorded.seen if call.content_type == "application/json"}
    assert sent <= covered


def test_floats_with_small_exponents_differ_in_spelling_only() -> None:
    """Python writes 1e-05 where we write 1e-5: the same number, not the same bytes."""
    request = types.OptimStepRequest(
        model_id="m", seq_id=1, adam_params=types.AdamParams(learning_rate=1e-5)
    )
    assert msgspec.json.decode(json.encode(request))["adam_params"]["learning_rate"] == 1e-5


def _ours(name: str, seq_id: int) -> bytes:
    return b"".join(
        protobuf.encode_forward_backward_request(
            model_id=MODEL,
            seq_id=seq_id,
            data=[DATA[name][0]],
            loss_fn="cross_entropy",
            loss_fn_config=None,
            forward_only=False,
        )
    )


def _canonical(body: bytes) -> bytes:
    message = pb.ForwardBackwardRequest()
    message.ParseFromString(body)
    return message.SerializeToString(deterministic=True)


@pytest.mark.parametrize(("seq_id", "name"), list(enumerate(DATA, start=1)))
def test_training_body_is_what_the_official_client_sends(
    recorded: Recorded, seq_id: int, name: str
) -> None:
    theirs = recorded.body("forward_backward", seq_id - 1)
    ours = _ours(name, seq_id)
    assert _canonical(ours) == _canonical(theirs)
    if len(DATA[name][0].loss_fn_inputs) <= 1:  # entries of a map come in any order
        assert ours == theirs


@pytest.mark.parametrize(("seq_id", "name"), list(enumerate(DATA, start=1)))
def test_training_body_of_the_official_client_is_read_as_ours(
    recorded: Recorded, seq_id: int, name: str
) -> None:
    body = recorded.body("forward_backward", seq_id - 1)
    request = protobuf.decode_forward_backward_request(body)
    assert (request.model_id, request.seq_id, request.loss_fn) == (MODEL, seq_id, "cross_entropy")
    assert not request.forward_only
    expected = protobuf.decode_forward_backward_request(_ours(name, seq_id))
    assert request.data == expected.data


def test_forward_only_with_config_is_byte_for_byte(recorded: Recorded) -> None:
    theirs = recorded.body("forward_backward", len(DATA))
    parts = protobuf.encode_forward_backward_request(
        model_id=MODEL,
        seq_id=len(DATA) + 1,
        data=[DATA["lists"][0]],
        loss_fn="ppo",
        loss_fn_config={"clip_low_threshold": 0.5},
        forward_only=True,
    )
    assert _canonical(b"".join(parts)) == _canonical(theirs)
    request = protobuf.decode_forward_backward_request(theirs)
    assert request.forward_only
    assert request.loss_fn_config == {"clip_low_threshold": 0.5}


def test_config_with_text_and_several_datums_agree(recorded: Recorded) -> None:
    theirs = recorded.body("forward_backward", len(DATA) + 1)
    config: dict[str, float | str] = {"low": 1, "high": 2.5, "mode": "x"}
    datum = DATA["lists"][0]
    parts = protobuf.encode_forward_backward_request(
        model_id=MODEL,
        seq_id=len(DATA) + 2,
        data=[datum, datum],
        loss_fn="gspo",
        loss_fn_config=config,
        forward_only=False,
    )
    assert _canonical(b"".join(parts)) == _canonical(theirs)
    request = protobuf.decode_forward_backward_request(theirs)
    assert request.loss_fn_config == config
    assert request.data == [datum, datum]


def test_target_tokens_and_weights_are_sparsified_apart() -> None:
    """Token 0 with a weight is listed among the weights and not among the tokens."""
    datum = DATA["independent sparsity"][0]
    tokens, weights = datum.loss_fn_inputs["target_tokens"], datum.loss_fn_inputs["weights"]
    assert tokens.is_sparse
    assert weights.is_sparse
    assert tokens.sparse_col_indices != weights.sparse_col_indices
    assert tokens.tolist()[0][0] == 0
    assert weights.tolist()[0][0] == 0.5


@pytest.mark.parametrize("name", DATA)
def test_our_size_estimate_is_the_official_one(name: str) -> None:
    ours, theirs = DATA[name]
    assert ours.size_bytes == _estimate_datum_bytes_count_proto(theirs)
