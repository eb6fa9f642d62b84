"""A loopback server that keeps what the official client sends and answers with our own encoders.

Every answer is a value of `tinkex.types` written by `tinkex.wire`, so that a call that succeeds is
also a proof that the official client can read us.
"""

from __future__ import annotations

from array import array
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from tests.support.http_server import Fault, HttpServer, Request, Response
from tinkex import types
from tinkex.wire import json, protobuf

WHEN = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
CHECKPOINT = types.Checkpoint(
    checkpoint_id="weights/c1",
    checkpoint_type="training",
    time=WHEN,
    tinker_path="tinker://s1:train:0/weights/c1",
    size_bytes=12,
    expires_at=WHEN,
)
RUN = types.TrainingRun(
    training_run_id="s1:train:0",
    base_model="base",
    model_owner="me",
    is_lora=True,
    lora_rank=8,
    last_request_time=WHEN,
    last_checkpoint=CHECKPOINT,
    user_metadata={"k": "v"},
)
SUMMARY = types.SessionSummary(
    session_id="s1",
    created_at=WHEN,
    owner="me",
    project_id="p",
    checkpoints_count=1,
    status=types.SessionFailed(
        category="user",
        reason=types.SessionFailedRequestReason(request_id="r", request_type="Sample"),
        message="bad",
    ),
)
SAMPLE = types.SampleResponse(
    sequences=[
        types.SampledSequence(
            stop_reason="length",
            tokens_raw=array("i", [5, 6]).tobytes(),
            logprobs_raw=array("f", [-0.5, -1.5]).tobytes(),
        )
    ],
    prompt_logprobs_raw=array("f", [float("nan"), -0.25, -0.125]).tobytes(),
    prompt_cache_hit_tokens=2,
)
OUTPUT = types.ForwardBackwardOutput(
    loss_fn_output_type="ArrayRecord",
    loss_fn_outputs=[{"logprobs": types.TensorData([-0.5, -0.25], "float32", [2])}],
    metrics={"loss:sum": 0.75},
)
INFO = types.GetInfoResponse(
    model_data=types.ModelData(arch="llama", model_name="base", tokenizer_id="base"),
    model_id="s1:train:0",
    is_lora=True,
    lora_rank=8,
)

ANSWERS: dict[str, object] = {
    "client/config": types.ClientConfig(custom_loss_server_side=True),
    "client/dynamic_config": types.ClientDynamicConfig(sample_cancel_enabled=True),
    "create_session": types.CreateSessionResponse(session_id="s1"),
    "session_heartbeat": types.SessionHeartbeatResponse(),
    "telemetry": types.TelemetryResponse(),
    "get_info": INFO,
    "weights_info": types.WeightsInfoResponse(base_model="base", is_lora=True, lora_rank=8),
    "create_sampling_session": types.CreateSamplingSessionResponse(
        sampling_session_id="s1:sample:0"
    ),
    "copy_weights": types.CopyWeightsResponse(tinker_path="tinker://r/weights/copy"),
    "sessions/search": types.SessionSearchResponse(
        sessions=[SUMMARY],
        next_cursor=types.SessionSearchCursor(last_created_at=WHEN, last_session_id="s1"),
    ),
    "get_server_capabilities": types.GetServerCapabilitiesResponse(
        supported_models=[types.SupportedModel(model_name="base", max_context_length=8)]
    ),
    "sessions": types.ListSessionsResponse(sessions=["s1"]),
    "sessions/s1": types.GetSessionResponse(training_run_ids=["a"], sampler_ids=["b"]),
    "training_runs": types.TrainingRunsResponse(
        training_runs=[RUN], cursor=types.Cursor(offset=0, limit=20, total_count=1)
    ),
    "training_runs/s1:train:0": RUN,
    "training_runs/s1:train:0/checkpoints": types.CheckpointsListResponse(checkpoints=[CHECKPOINT]),
    "checkpoints": types.CheckpointsListResponse(
        checkpoints=[CHECKPOINT], cursor=types.Cursor(offset=0, limit=100, total_count=1)
    ),
    "training_runs/r/checkpoints/external_weights/x/external_weights_urls": (
        types.ExternalWeightsUrlsResponse(urls={"a.bin": "https://x/a.bin"}, expires=WHEN)
    ),
    "samplers/s1:sample:0": types.GetSamplerResponse(sampler_id="s1:sample:0", base_model="base"),
    "audit": types.AuditLogResponse(
        entries=[types.AuditLogEntry(timestamp=WHEN, event="login", event_details={"a": 1})]
    ),
    "billing/usage/events": types.BillingUsageResponse(
        data=[
            types.BillingUsageEvent(
                bucket_start=WHEN,
                bucket_end=WHEN,
                event_info=types.SamplingPrefillBillingEvent(cached=True, token_count=3),
            )
        ],
        sessions={"s1": types.BillingUsageSession(user_metadata={"k": "v"})},
    ),
    "billing/usage/checkpoints/current": types.CurrentCheckpointStorageUsageResponse(
        data=[
            types.CurrentCheckpointStorageUsageItem(
                checkpoint_count=1, size_bytes=2, size_gigabytes=0.5
            )
        ]
    ),
}
RESULTS: dict[str, object] = {
    "create_model": types.CreateModelResponse(model_id="s1:train:0"),
    "optim_step": types.OptimStepResponse(metrics={"grad_norm": 1.0}),
    "save_weights": types.SaveWeightsResponse(path="tinker://s1:train:0/weights/c1"),
    "save_weights_for_sampler": types.SaveWeightsForSamplerResponse(
        path="tinker://s1:train:0/sampler_weights/s"
    ),
    "save_weights_external": types.SaveWeightsExternalResponse(
        path="tinker://s1:train:0/external_weights/x", size_bytes=9
    ),
    "load_weights": types.LoadWeightsResponse(path="tinker://s1:train:0/weights/c1"),
    "create_custom_loss": types.CreateCustomLossResponse(loss_id="loss-1"),
}


class Call(NamedTuple):
    """One request as it arrived."""

    method: str
    path: str
    content_type: str
    body: bytes


class Recorder:
    """Keeps every request in `seen`, in order of arrival. An `Application` of the test server."""

    def __init__(self) -> None:
        self.seen: list[Call] = []
        self.answers = dict(ANSWERS)
        self._http = HttpServer(self)
        self._http.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.port}"

    def on_head(self, request: Request) -> Fault | None:
        return None

    def on_request(self, request: Request) -> Fault:
        content_type = request.headers.get("content-type", "")
        self.seen.append(Call(request.method, _route(request), content_type, request.body))
        return Fault()

    async def respond(self, request: Request) -> Response:
        content_type, body = self._answer(_route(request), request.body)
        return Response(headers={"content-type": content_type}, body=body)

    def _answer(self, path: str, body: bytes) -> tuple[str, bytes]:
        if path == "retrieve_future":
            return self._result(msgspec.json.decode(body)["request_id"])
        if path == "asample":
            return _json(types.UntypedPromise(request_id="asample", sample_sequence_ids=["q-0"]))
        if path in RESULTS or path == "forward_backward":
            return _json(types.UntypedPromise(request_id=path))
        return _json(self.answers.get(path, {}))

    def _result(self, request_id: str) -> tuple[str, bytes]:
        if request_id == "asample":
            return "application/x-protobuf", protobuf.encode_sample_response(SAMPLE)
        if request_id == "forward_backward":
            return "application/x-protobuf", protobuf.encode_forward_backward_output(OUTPUT)
        return _json(RESULTS[request_id])


def _route(request: Request) -> str:
    return request.target.removeprefix("/api/v1/").partition("?")[0]


def _json(value: object) -> tuple[str, bytes]:
    return "application/json", json.encode(value)
