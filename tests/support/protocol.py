"""A Tinker service that trains nothing: the protocol, its order and its memory, on fake numbers.

Speaks every call the official client 0.36 and ours can make. Work is done at once unless it is
held; what was applied, and in which order, can be read from each model's `history`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from tests.support import work
from tests.support.answers import Refusal, as_json
from tests.support.http_server import Request, Response
from tests.support.polls import FutureCalls
from tests.support.rest import ROUTES as REST_ROUTES
from tests.support.rest import RestCalls
from tests.support.state import (
    Checkpoint,
    Model,
    NumberReused,
    Operation,
    Promise,
    Sampler,
    Session,
    World,
)
from tinkex.wire import protobuf

TRAIN_KINDS = {
    "forward_backward",
    "optim_step",
    "save_weights",
    "save_weights_for_sampler",
    "save_weights_external",
    "load_weights",
}
ROUTES = {
    ("POST", r"client/config"): "client_config",
    ("POST", r"client/dynamic_config"): "dynamic_config",
    ("POST", r"auth/token"): "auth_token",
    ("POST", r"create_session"): "create_session",
    ("POST", r"session_heartbeat"): "session_heartbeat",
    ("POST", r"create_model"): "create_model",
    ("POST", r"create_sampling_session"): "create_sampling_session",
    ("POST", r"join_sampling_session"): "join_sampling_session",
    ("POST", r"create_custom_loss"): "create_custom_loss",
    ("POST", r"asample"): "asample",
    ("POST", r"get_info"): "get_info",
    ("POST", r"retrieve_future"): "retrieve_future",
    ("POST", r"retrieve_futures"): "retrieve_futures",
    ("POST", r"cancel_future"): "cancel_future",
    ("POST", r"telemetry"): "telemetry",
    **{("POST", kind): kind for kind in TRAIN_KINDS},
    **REST_ROUTES,
}
_COMPILED = [(method, re.compile(pattern), name) for (method, pattern), name in ROUTES.items()]
_EXACT = {(method, pattern): name for (method, pattern), name in ROUTES.items()}


def route_of(request: Request) -> tuple[str, tuple[str, ...]]:
    """The name of a request's route, and what its path names."""
    if request.path.startswith("/files/"):
        return "file", tuple(request.path.removeprefix("/files/").split("/", 1))
    rest = request.path.partition("/api/v1/")[2]
    if name := _EXACT.get((request.method, rest)):
        return name, ()
    for method, pattern, name in _COMPILED:
        if method == request.method and (match := pattern.fullmatch(rest)):
            return name, match.groups()
    return "unknown", ()


def decode(request: Request) -> Any:
    """The request's body as a value: protobuf, JSON, or nothing."""
    if not request.body:
        return None
    if "x-protobuf" in request.headers.get("content-type", ""):
        body = request.body
        if request.headers.get("content-encoding") == "zstd":
            import zstandard

            body = zstandard.ZstdDecompressor().decompressobj().decompress(body)
        return protobuf.decode_forward_backward_request(body)
    return json.loads(request.body)


@dataclass(kw_only=True)
class TinkerService(RestCalls, FutureCalls):
    """The service's answers to whole, well-formed requests."""

    base_url: str = ""
    flags: dict[str, Any] = field(default_factory=dict)
    """What `client/config` says."""
    dynamic_flags: dict[str, Any] = field(default_factory=dict)
    models: list[str] = field(default_factory=lambda: ["tiny/model"])
    telemetry: list[Any] = field(default_factory=list)
    world: World = field(default_factory=World)

    async def answer(self, request: Request, body: Any) -> Response:
        """The proper answer to a request."""
        route, names = route_of(request)
        handler: Callable[..., Awaitable[Response] | Response] | None = getattr(
            self, f"_{route}", None
        )
        if handler is None:
            return as_json({"detail": f"no such call: {request.method} {request.path}"}, 404)
        try:
            if route in TRAIN_KINDS:
                return self._train(route, request, body)
            answer = handler(request, body, *names)
            return await answer if isinstance(answer, Awaitable) else answer
        except Refusal as refusal:
            return refusal.response
        except NumberReused as reused:
            return as_json({"detail": str(reused)}, 422)

    def refuse(self, body: Any) -> None:
        """Count the number of a training request as used up: it was refused for good."""
        model = self.world.models.get(_get(body, "model_id", ""))
        if model is not None and (seq_id := _get(body, "seq_id", None)) is not None:
            self.world.refuse(model, seq_id)

    # Handshake and sessions.

    def _client_config(self, request: Request, body: Any) -> Response:
        return as_json(self.flags)

    def _dynamic_config(self, request: Request, body: Any) -> Response:
        return as_json(self.dynamic_flags)

    def _auth_token(self, request: Request, body: Any) -> Response:
        return as_json({"jwt": "eyJ0eXAiOiJKV1QifQ.eyJleHAiOjQwMDAwMDAwMDB9.c2ln"})

    def _create_session(self, request: Request, body: Any) -> Response:
        session_id = f"session-{self.world.number()}"
        self.world.sessions[session_id] = Session(
            session_id,
            request.headers.get("x-api-key", ""),
            body["tags"],
            body["user_metadata"],
            body.get("project_id"),
            body.get("display_name"),
        )
        return as_json({"type": "create_session", "session_id": session_id})

    def _session_heartbeat(self, request: Request, body: Any) -> Response:
        session = self.session(request, body["session_id"])
        if session.finished is not None:
            raise Refusal(410, "the session is finished")
        session.heartbeats += 1
        return as_json({"type": "session_heartbeat"})

    # Training.

    def _create_model(self, request: Request, body: Any) -> Response:
        session = self.session(request, body["session_id"])
        key = ("create_model", session.session_id, body["model_seq_id"])
        promise, is_new = self.world.promise("create_model", key, body)
        if is_new:
            model = self._add_model(session, body)
            promise.resolve(as_json({"model_id": model.model_id, "type": "create_model"}))
        return _promised(promise)

    def _add_model(self, session: Session, body: dict[str, Any]) -> Model:
        model_id = f"{session.session_id}:train:{body['model_seq_id']}"
        model = self.world.models[model_id] = Model(
            model_id,
            session,
            body.get("base_model") or "tiny/model",
            body.get("lora_config") or {"rank": 32},
            body.get("optimizer_config") or {"type": "adamw"},
            body.get("user_metadata"),
        )
        return model

    def _train(self, kind: str, request: Request, body: Any) -> Response:
        if kind == "load_weights" and "session_id" in body:
            return self._create_by_load(request, body)
        model = self.model(request, _get(body, "model_id"))
        seq_id = _get(body, "seq_id")
        key = ("train", model.model_id, seq_id)
        promise, is_new = self.world.promise(kind, key, _content(body))
        if is_new:
            apply = getattr(self, f"_{kind}")
            operation = Operation(kind, promise, lambda: apply(model, body))
            self.world.queue(model, seq_id, operation)
        return _promised(promise)

    def _create_by_load(self, request: Request, body: Any) -> Response:
        session = self.session(request, body["session_id"])
        key = ("create_model", session.session_id, body["model_seq_id"])
        promise, is_new = self.world.promise("load_weights", key, body)
        if is_new:
            model = self._add_model(session, body)
            answer, _ = self._load_weights(model, body)
            promise.resolve(answer)
        return _promised(promise)

    def _forward_backward(self, model: Model, body: Any) -> tuple[Response, Any]:
        return work.forward_backward(model, body)

    def _optim_step(self, model: Model, body: Any) -> tuple[Response, Any]:
        gradients, model.gradients = model.gradients, 0
        model.step += 1
        rate = (body.get("adam_params") or body.get("optimizer_params"))["learning_rate"]
        metrics = {"gradients": float(gradients), "learning_rate": rate}
        return as_json({"metrics": metrics, "type": "optim_step"}), {"gradients": gradients}

    def _save_weights(self, model: Model, body: Any) -> tuple[Response, Any]:
        path = self._save(model, "weights", body)
        return as_json({"path": path, "type": "save_weights"}), path

    def _save_weights_for_sampler(self, model: Model, body: Any) -> tuple[Response, Any]:
        if body.get("path"):
            path = self._save(model, "sampler_weights", body)
            return as_json({"path": path}), path
        sampler_id = f"{model.session.session_id}:sample:{body['sampling_session_seq_id']}"
        sampler = Sampler(sampler_id, model.session, model.base_model, None, model.step)
        self.world.samplers[sampler_id] = sampler
        return as_json({"path": None, "sampling_session_id": sampler_id}), sampler_id

    def _save_weights_external(self, model: Model, body: Any) -> tuple[Response, Any]:
        path = self._save(model, "external_weights", body)
        size = sum(map(len, self.world.checkpoints[path].files.values()))
        return as_json({"path": path, "size_bytes": size}), path

    def _save(self, model: Model, kind: str, body: dict[str, Any]) -> str:
        path = f"tinker://{model.model_id}/{kind}/{body['path']}"
        self.world.checkpoints[path] = Checkpoint(
            path,
            model,
            model.step,
            self.world.number(),
            body.get("user_metadata"),
            ttl_seconds=body.get("ttl_seconds"),
            files={
                "adapter_config.json": json.dumps(model.lora_config).encode(),
                "adapter_model.safetensors": bytes(range(256)) * 64,
            },
        )
        return path

    def _load_weights(self, model: Model, body: Any) -> tuple[Response, Any]:
        saved = self.world.checkpoints.get(body["path"])
        if saved is None:
            error = {"error": f"no such checkpoint: {body['path']}", "category": "user"}
            return as_json(error), "failed"
        model.step = saved.step
        model.gradients = 0
        answer = {"path": body["path"], "model_id": model.model_id, "type": "load_weights"}
        return as_json(answer), {"path": body["path"], "optimizer": body["optimizer"]}

    def _create_custom_loss(self, request: Request, body: Any) -> Response:
        key = ("loss", body["session_id"], body["custom_loss_seq_id"])
        promise, is_new = self.world.promise("create_custom_loss", key, body)
        if is_new:
            answer = {"loss_id": f"loss-{self.world.number()}", "type": "create_custom_loss"}
            promise.resolve(as_json(answer))
        return _promised(promise)

    def _get_info(self, request: Request, body: Any) -> Response:
        model = self.model(request, body["model_id"])
        data = {"arch": "tiny", "model_name": model.base_model, "tokenizer_id": model.base_model}
        return as_json(
            {
                "type": "get_info",
                "model_id": model.model_id,
                "is_lora": True,
                "lora_rank": model.lora_config["rank"],
                "model_name": model.base_model,
                "model_data": data,
                "optimizer_config": model.optimizer_config,
            }
        )

    # Sampling.

    def _create_sampling_session(self, request: Request, body: Any) -> Response:
        session = self.session(request, body["session_id"])
        path, base_model, step = body.get("model_path"), body.get("base_model"), 0
        if path is not None:
            saved = self.world.checkpoints.get(path)
            if saved is None or saved.model.session.api_key != session.api_key:
                raise Refusal(404, f"no such checkpoint: {path}")
            base_model, step = saved.model.base_model, saved.step
        sampler_id = f"{session.session_id}:sample:{body['sampling_session_seq_id']}"
        self.world.samplers.setdefault(
            sampler_id, Sampler(sampler_id, session, base_model, path, step)
        )
        return as_json({"type": "create_sampling_session", "sampling_session_id": sampler_id})

    def _join_sampling_session(self, request: Request, body: Any) -> Response:
        session = self.sampler(request, body["sampling_session_id"]).session
        session.joined += 1
        return as_json({"client_counter": session.joined})

    def _asample(self, request: Request, body: Any) -> Response:
        sampler = self.sampler(request, body["sampling_session_id"])
        key = ("sample", sampler.sampler_id, body["seq_id"])
        promise, is_new = self.world.promise("asample", key, body)
        if is_new:
            sampler.seq_ids.append(body["seq_id"])
            promise.sample_sequence_ids = [
                f"{promise.request_id}/{index}" for index in range(body["num_samples"])
            ]
            operation = Operation("asample", promise, lambda: (work.sample(sampler, body), None))
            self.world.run_sample(operation)
        return _promised(promise)

    def _telemetry(self, request: Request, body: Any) -> Response:
        self.telemetry.append(body)
        return as_json({"status": "accepted"})

    # Who may see what: another key's things do not exist.

    def session(self, request: Request, session_id: str) -> Session:
        """The session, if it is the caller's."""
        session = self.world.sessions.get(session_id)
        if session is None or session.api_key != request.headers.get("x-api-key"):
            raise Refusal(404, f"no such session: {session_id}")
        return session

    def model(self, request: Request, model_id: str) -> Model:
        """The model, if it is the caller's."""
        model = self.world.models.get(model_id)
        if model is None or model.session.api_key != request.headers.get("x-api-key"):
            raise Refusal(404, f"no such model: {model_id}")
        return model

    def sampler(self, request: Request, sampler_id: str) -> Sampler:
        """The sampling session, if it is the caller's."""
        sampler = self.world.samplers.get(sampler_id)
        if sampler is None or sampler.session.api_key != request.headers.get("x-api-key"):
            raise Refusal(404, f"no such sampling session: {sampler_id}")
        return sampler


def _promised(promise: Promise) -> Response:
    answer: dict[str, Any] = {"request_id": promise.request_id}
    if promise.sample_sequence_ids is not None:
        answer["sample_sequence_ids"] = promise.sample_sequence_ids
    return as_json(answer)


def _get(body: Any, name: str, *default: Any) -> Any:
    if isinstance(body, dict):
        return body.get(name, *default) if default else body[name]
    return getattr(body, name, *default)


def _content(body: Any) -> Any:
    """What must stay the same when a number is sent again.

    A retried unnamed save carries a new sampling_session_seq_id under the same seq_id.
    """
    if isinstance(body, dict):
        return {key: value for key, value in body.items() if key != "sampling_session_seq_id"}
    return body
