"""The server's whole surface: every route of the application with a valid request for it.

Read off the route table itself. A route that is added without an entry in `REQUESTS` fails
`test_every_route_has_a_request`, and with it every campaign and every tenant's test covers it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote

from starlette.routing import Mount, Route

from tests.security.things import Things
from tests.server.driving import MODEL, training_body
from tinkex.server.app import API_ROUTES, build_app
from tinkex.server.http.openai_paths import PREFIXES
from tinkex.server.openai.routes import ROUTES as OPENAI_ROUTES

OPENAI = PREFIXES[0]
PROTOBUF = "application/x-protobuf"
RouteKey = tuple[str, str]


class Call(NamedTuple):
    """One request. `content` is a JSON value, or bytes to send as they are."""

    method: str
    path: str
    content: Any = None
    content_type: str = "application/json"
    query: dict[str, str] = {}
    headers: dict[str, str] = {}
    prefix: str = "/api/v1"

    @property
    def body(self) -> bytes | None:
        """The bytes of the body."""
        if self.content is None or isinstance(self.content, bytes):
            return self.content
        return json.dumps(self.content).encode()

    @property
    def target(self) -> str:
        """The path under the prefix, with its query."""
        request = "&".join(f"{quote(k)}={quote(v)}" for k, v in self.query.items())
        return f"{self.prefix}{self.path}" + (f"?{request}" if request else "")


class Entry(NamedTuple):
    """How a route is asked, and what it may know of others.

    `names` says that the request names something of its tenant, so others get 404.
    """

    make: Callable[[Things], Call]
    names: bool = False


def routes() -> list[tuple[RouteKey, Route]]:
    """Every route of the application, by method and path; those of the OpenAI endpoint with their
    prefix, under the first of them."""
    app = build_app(keyring=None)  # type: ignore[arg-type]
    mounted = [each for each in app.routes if isinstance(each, Mount)]
    assert [each.path for each in mounted] == ["/api/v1", *PREFIXES], "routes outside the prefixes"
    listed = [("", each) for each in API_ROUTES] + [(OPENAI, each) for each in OPENAI_ROUTES]
    return [
        ((method, prefix + route.path), route)
        for prefix, route in listed
        for method in sorted((route.methods or set()) - {"HEAD"})
    ]


def families() -> dict[str, list[RouteKey]]:
    """The routes by the module they live in."""
    found: dict[str, list[RouteKey]] = {}
    for key, route in routes():
        found.setdefault(route.endpoint.__module__.rpartition(".")[2], []).append(key)
    return found


def _get(path: str, **query: str) -> Callable[[Things], Call]:
    return lambda _: Call("GET", path, query=query)


_SUM_OF_LOGPROBS = {
    "format": 1,
    "nodes": [
        {"op": "placeholder", "name": "lp", "target": "logprobs"},
        {"op": "call_method", "name": "s", "target": "sum", "args": [{"ref": "lp"}]},
        {
            "op": "output",
            "name": "output",
            "target": "output",
            "args": [{"tuple": [{"ref": "s"}, {"dict": {}}]}],
        },
    ],
}
"""The graph of a custom loss."""


def _post(path: str, content: Callable[[Things], Any]) -> Callable[[Things], Call]:
    return lambda t: Call("POST", path, content(t))


def _run(method: str, rest: str = "", content: Any = None) -> Callable[[Things], Call]:
    return lambda t: Call(
        method, f"/training_runs/{t.model}/checkpoints/weights/{t.weights}{rest}", content
    )


def _train(path: str, *, as_json: bool) -> Callable[[Things], Call]:
    def make(t: Things) -> Call:
        if not as_json:
            return Call("POST", path, training_body(t.model, t.next_seq()), PROTOBUF)
        tensor = {"data": [2, 3], "dtype": "int64", "shape": [2]}
        weights = {"data": [1.0, 0.5], "dtype": "float32", "shape": [2]}
        datum = {
            "model_input": {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]},
            "loss_fn_inputs": {"target_tokens": tensor, "weights": weights},
        }
        inner = {"data": [datum], "loss_fn": "cross_entropy", "loss_fn_config": {"x": 1.0}}
        return Call(
            "POST", path, {"model_id": t.model, "seq_id": t.next_seq(), "forward_input": inner}
        )

    return make


def _sample(t: Things) -> dict[str, Any]:
    return {
        "sampling_session_id": t.sampler,
        "seq_id": t.next_sample(),
        "num_samples": 2,
        "prompt": {
            "chunks": [
                {"type": "encoded_text", "tokens": [1, 2, 3]},
                {"type": "encoded_text", "tokens": [4]},
            ]
        },
        "sampling_params": {
            "max_tokens": 3,
            "temperature": 0.5,
            "top_k": 5,
            "top_p": 0.9,
            "seed": 1,
            "stop": ["x"],
        },
        "prompt_logprobs": True,
        "topk_prompt_logprobs": 2,
        "topk_sample_logprobs": 1,
        "target_prompt_logprobs": {"data": [1, 2, 3], "dtype": "int64", "shape": [3, 1]},
        "prompt_alt_tokens_k": 1,
        "prompt_logprobs_last_n": 2,
        "record_stability_info": False,
        "type": "sample",
    }


def _target(t: Things) -> dict[str, Any]:
    return {
        "target": {
            "type": "sampling_session",
            "sampling_session_id": t.sampler,
            "cloned_sampler_id": 0,
        },
        "prev_cursor": 0,
        "retrieved_request_ids": [],
    }


def _search(t: Things) -> dict[str, Any]:
    return {
        "session_id": t.session,
        "project_ids": ["p"],
        "user_metadata": {"k": "v"},
        "display_name": "run one",
        "owner": {"type": "user", "owner_urns": ["tml:user:x"]},
        "statuses": [{"type": "active"}, {"type": "client_finished", "reasons": ["success"]}],
        "limit": 5,
        "cursor": {"last_created_at": "2026-01-01T00:00:00Z", "last_session_id": t.session},
    }


def _openai(method: str, path: str, content: dict[str, Any] | None = None) -> Entry:
    """A request to the OpenAI endpoint that names a checkpoint of its tenant."""

    def make(t: Things) -> Call:
        model = f"tinker://{t.model}/weights/{t.weights}"
        body = None if content is None else {"model": model, **content}
        return Call(method, path.replace("NAME", model), body, prefix=OPENAI)

    return Entry(make, names=True)


_OPENAI_PARAMETERS: dict[str, Any] = {
    "max_tokens": 3,
    "n": 2,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "repetition_penalty": 1.1,
    "logit_bias": {"1": 1.5},
    "seed": 1,
    "stop": ["x"],
    "stream": False,
    "user": "u",
    "metadata": {"k": "v"},
}

REQUESTS: dict[RouteKey, Entry] = {
    ("GET", "/v1/models"): Entry(lambda _: Call("GET", "/models", prefix=OPENAI)),
    ("GET", "/v1/models/{name:path}"): _openai("GET", "/models/NAME"),
    ("POST", "/v1/completions"): _openai(
        "POST", "/completions", {**_OPENAI_PARAMETERS, "prompt": [[1, 2]], "logprobs": 1}
    ),
    ("POST", "/v1/chat/completions"): _openai(
        "POST",
        "/chat/completions",
        {
            **_OPENAI_PARAMETERS,
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "x"}]},
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}],
                },
                {"role": "tool", "tool_call_id": "c", "content": "y"},
            ],
            "logprobs": True,
            "top_logprobs": 1,
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "tool_choice": "auto",
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": {"type": "object"}},
            },
        },
    ),
    ("GET", "/healthz"): Entry(_get("/healthz")),
    ("GET", "/version"): Entry(_get("/version")),
    ("GET", "/get_server_capabilities"): Entry(_get("/get_server_capabilities")),
    ("POST", "/client/config"): Entry(_post("/client/config", lambda _: {"sdk_version": "0.36.0"})),
    ("POST", "/client/dynamic_config"): Entry(
        _post("/client/dynamic_config", lambda _: {"sdk_version": "0.36.0"})
    ),
    ("POST", "/create_session"): Entry(
        _post(
            "/create_session",
            lambda _: {
                "tags": ["a", "b"],
                "user_metadata": {"exp": "1"},
                "sdk_version": "0.36.0",
                "project_id": "p",
                "display_name": "run one",
                "type": "create_session",
            },
        )
    ),
    ("POST", "/session_heartbeat"): Entry(
        _post("/session_heartbeat", lambda t: {"session_id": t.session}), names=True
    ),
    ("GET", "/sessions"): Entry(_get("/sessions", limit="5", offset="0", access_scope="owned")),
    ("POST", "/sessions/search"): Entry(_post("/sessions/search", _search)),
    ("GET", "/sessions/{session_id}"): Entry(
        lambda t: Call("GET", f"/sessions/{t.session}"), names=True
    ),
    ("POST", "/sessions/{session_id}/finish"): Entry(
        lambda t: Call(
            "POST",
            f"/sessions/{t.session}/finish",
            {"reason": {"type": "success"}, "detail": "over"},
        ),
        names=True,
    ),
    ("PUT", "/sessions/{session_id}/project"): Entry(
        lambda t: Call("PUT", f"/sessions/{t.session}/project", {"project_id": "p"}), names=True
    ),
    ("GET", "/sessions/{session_id}/trace_export"): Entry(
        lambda t: Call("GET", f"/sessions/{t.session}/trace_export"), names=True
    ),
    ("PATCH", "/training_runs/{run_id}"): Entry(
        lambda t: Call(
            "PATCH", f"/training_runs/{t.model}", {"name": "run one", "tags": {"k": "v"}}
        ),
        names=True,
    ),
    ("GET", "/training_runs/{run_id}/metrics"): Entry(
        lambda t: Call(
            "GET",
            f"/training_runs/{t.model}/metrics",
            query={"names": "loss:sum", "after": "0", "max_points": "10", "chain": "1"},
        ),
        names=True,
    ),
    ("POST", "/training_runs/{run_id}/metrics"): Entry(
        lambda t: Call(
            "POST",
            f"/training_runs/{t.model}/metrics",
            {"metrics": {"reward": 1.5, "bad": None}, "step": 3, "after_seq": 1, "log_id": "a"},
        ),
        names=True,
    ),
    ("GET", "/usage"): Entry(
        _get("/usage", **{"by": "day", "from": "2026-01-01", "to": "2026-12-31"})
    ),
    ("GET", "/live"): Entry(
        lambda t: Call("GET", "/live", query={"runs": t.model, "after": f"{t.model}=0"}),
        names=True,
    ),
    ("POST", "/create_model"): Entry(
        _post(
            "/create_model",
            lambda t: {
                "session_id": t.session,
                "model_seq_id": t.next_model(),
                "base_model": MODEL,
                "user_metadata": {"k": "v"},
                "lora_config": {"rank": 4, "seed": 1, "train_mlp": True},
                "optimizer_config": {"type": "adamw"},
                "type": "create_model",
            },
        ),
        names=True,
    ),
    ("POST", "/forward_backward"): Entry(_train("/forward_backward", as_json=False), names=True),
    ("POST", "/forward"): Entry(_train("/forward", as_json=True), names=True),
    ("POST", "/optim_step"): Entry(
        _post(
            "/optim_step",
            lambda t: {
                "model_id": t.model,
                "seq_id": t.next_seq(),
                "adam_params": {
                    "learning_rate": 1e-4,
                    "beta1": 0.9,
                    "beta2": 0.95,
                    "eps": 1e-8,
                    "weight_decay": 0.0,
                    "grad_clip_norm": 0.0,
                },
                "type": "optim_step",
            },
        ),
        names=True,
    ),
    ("POST", "/get_info"): Entry(_post("/get_info", lambda t: {"model_id": t.model}), names=True),
    ("POST", "/create_custom_loss"): Entry(
        _post(
            "/create_custom_loss",
            lambda t: {
                "session_id": t.session,
                "custom_loss_seq_id": 0,
                "name": "n",
                "inputs": [{"name": "logprobs", "rank": 1}],
                "graph": _SUM_OF_LOGPROBS,
            },
        )
    ),
    ("POST", "/save_weights"): Entry(
        _post(
            "/save_weights",
            lambda t: {
                "model_id": t.model,
                "path": f"ck-{t.next_seq()}",
                "seq_id": t.next_seq(),
                "ttl_seconds": 7200,
                "overwrite": True,
                "user_metadata": {"k": "v"},
                "type": "save_weights",
            },
        ),
        names=True,
    ),
    ("POST", "/save_weights_for_sampler"): Entry(
        _post(
            "/save_weights_for_sampler",
            lambda t: {
                "model_id": t.model,
                "sampling_session_seq_id": t.next_model(),
                "seq_id": t.next_seq(),
                "type": "save_weights_for_sampler",
            },
        ),
        names=True,
    ),
    ("POST", "/save_weights_external"): Entry(
        _post(
            "/save_weights_external",
            lambda t: {
                "model_id": t.model,
                "path": f"ext-{t.next_seq()}",
                "seq_id": t.next_seq(),
                "age_encryption_recipients": ["age1x"],
                "type": "save_weights_external",
            },
        ),
        names=True,
    ),
    ("POST", "/load_weights"): Entry(
        _post(
            "/load_weights",
            lambda t: {
                "model_id": t.model,
                "seq_id": t.next_seq(),
                "path": f"tinker://{t.model}/weights/{t.weights}",
                "optimizer": True,
                "type": "load_weights",
            },
        ),
        names=True,
    ),
    ("POST", "/weights_info"): Entry(
        _post(
            "/weights_info", lambda t: {"tinker_path": f"tinker://{t.model}/weights/{t.weights}"}
        ),
        names=True,
    ),
    ("POST", "/copy_weights"): Entry(
        _post(
            "/copy_weights",
            lambda t: {
                "source_path": f"tinker://{t.model}/weights/{t.weights}",
                "destination_project_id": "p",
                "ttl_seconds": 7200,
            },
        ),
        names=True,
    ),
    ("POST", "/create_sampling_session"): Entry(
        _post(
            "/create_sampling_session",
            lambda t: {
                "session_id": t.session,
                "sampling_session_seq_id": t.next_model(),
                "model_path": f"tinker://{t.model}/weights/{t.weights}",
                "type": "create_sampling_session",
            },
        ),
        names=True,
    ),
    ("POST", "/join_sampling_session"): Entry(
        _post("/join_sampling_session", lambda t: {"sampling_session_id": t.sampler}), names=True
    ),
    ("POST", "/asample"): Entry(_post("/asample", _sample), names=True),
    ("POST", "/stream_sample"): Entry(
        _post(
            "/stream_sample",
            lambda t: {
                "request_id": t.sample_future,
                "offsets": [0],
                "cancel_when_closed": False,
            },
        ),
        names=True,
    ),
    ("GET", "/samplers/{sampler_id}"): Entry(
        lambda t: Call("GET", f"/samplers/{t.sampler}"), names=True
    ),
    ("POST", "/retrieve_future"): Entry(
        _post("/retrieve_future", lambda t: {"request_id": t.future, "allow_metadata_only": True}),
        names=True,
    ),
    ("POST", "/retrieve_futures"): Entry(_post("/retrieve_futures", _target), names=True),
    ("POST", "/cancel_future"): Entry(
        _post("/cancel_future", lambda t: {"request_id": t.sample_future}), names=True
    ),
    ("POST", "/cancel"): Entry(
        _post("/cancel", lambda t: {"request_id": t.sample_future}), names=True
    ),
    ("GET", "/training_runs"): Entry(
        _get("/training_runs", limit="5", offset="0", access_scope="owned", project_id="p")
    ),
    ("GET", "/training_runs/{run_id}"): Entry(
        lambda t: Call("GET", f"/training_runs/{t.model}"), names=True
    ),
    ("GET", "/training_runs/{run_id}/checkpoints"): Entry(
        lambda t: Call("GET", f"/training_runs/{t.model}/checkpoints"), names=True
    ),
    ("GET", "/checkpoints"): Entry(_get("/checkpoints", limit="5", offset="0")),
    ("DELETE", "/training_runs/{run_id}/checkpoints/{kind}/{name}"): Entry(
        _run("DELETE"), names=True
    ),
    ("POST", "/training_runs/{run_id}/checkpoints/{kind}/{name}/publish"): Entry(
        _run("POST", "/publish"), names=True
    ),
    ("DELETE", "/training_runs/{run_id}/checkpoints/{kind}/{name}/publish"): Entry(
        _run("DELETE", "/publish"), names=True
    ),
    ("PUT", "/training_runs/{run_id}/checkpoints/{kind}/{name}/ttl"): Entry(
        _run("PUT", "/ttl", {"ttl_seconds": 7200}), names=True
    ),
    ("GET", "/training_runs/{run_id}/checkpoints/{kind}/{name}/external_weights_urls"): Entry(
        lambda t: Call(
            "GET",
            f"/training_runs/{t.model}/checkpoints/external_weights/{t.export}"
            "/external_weights_urls",
        ),
        names=True,
    ),
    ("GET", "/training_runs/{run_id}/checkpoints/{kind}/{name}/archive"): Entry(
        _run("GET", "/archive"), names=True
    ),
    ("GET", "/training_runs/{run_id}/checkpoints/{kind}/{name}/merged"): Entry(
        _run("GET", "/merged"), names=True
    ),
    ("POST", "/unload_model"): Entry(
        _post("/unload_model", lambda t: {"model_id": t.spare_model}), names=True
    ),
    ("GET", "/download/archive/{checkpoint_id}"): Entry(
        lambda t: Call("GET", t.archive_link.path, query=t.archive_link.query)
    ),
    ("GET", "/download/merged/{checkpoint_id}/{name}"): Entry(
        lambda t: Call("GET", t.merged_link.path, query=t.merged_link.query)
    ),
    ("GET", "/download/{checkpoint_id}/{name}"): Entry(
        lambda t: Call("GET", t.file_link.path, query=t.file_link.query)
    ),
    ("POST", "/auth/token"): Entry(_post("/auth/token", lambda _: {})),
    ("GET", "/auth/apikey/me"): Entry(_get("/auth/apikey/me")),
    ("DELETE", "/auth/apikey/me"): Entry(lambda _: Call("DELETE", "/auth/apikey/me")),
    ("GET", "/keys"): Entry(_get("/keys")),
    ("POST", "/keys"): Entry(_post("/keys", lambda _: {"name": "laptop"})),
    ("DELETE", "/keys/{key_id:int}"): Entry(
        lambda t: Call("DELETE", f"/keys/{t.key_id}"), names=True
    ),
    ("POST", "/telemetry"): Entry(
        _post(
            "/telemetry",
            lambda t: {
                "events": [{"event": "SESSION_START", "event_id": "1"}],
                "platform": "Linux",
                "sdk_version": "0.36.0",
                "session_id": t.session,
            },
        )
    ),
    ("GET", "/audit"): Entry(_get("/audit", event_type="all", day="2026-01-01")),
    ("GET", "/billing/usage/checkpoints/current"): Entry(
        _get("/billing/usage/checkpoints/current", project_id="p")
    ),
    ("GET", "/status"): Entry(_get("/status")),
    # For operators alone: a tenant's key gets 401, whatever is named.
    ("GET", "/operator/status"): Entry(_get("/operator/status")),
    ("GET", "/operator/workers"): Entry(_get("/operator/workers")),
    ("POST", "/operator/workers/{name}/drain"): Entry(
        lambda _: Call("POST", "/operator/workers/worker-0/drain")
    ),
    ("POST", "/operator/workers/{name}/resume"): Entry(
        lambda _: Call("POST", "/operator/workers/worker-0/resume")
    ),
    ("GET", "/billing/{rest:path}"): Entry(
        _get("/billing/usage/events", starting_on="a", ending_before="b")
    ),
}
