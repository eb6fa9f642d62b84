"""Runs, checkpoints, sessions and files of the loopback service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.answers import Refusal, as_json
from tests.support.http_server import Request, Response
from tests.support.state import Checkpoint, Model, Sampler, Session, World

WHEN = "2026-01-02T03:04:05+00:00"
FAR = "2036-01-02T03:04:05+00:00"
_RUN = r"training_runs/([^/]+)"
_CHECKPOINT = _RUN + r"/checkpoints/([^/]+/[^/]+)"
ROUTES = {
    ("GET", r"healthz"): "healthz",
    ("GET", r"get_server_capabilities"): "get_server_capabilities",
    ("GET", r"auth/apikey/me"): "api_key",
    ("GET", r"sessions"): "list_sessions",
    ("POST", r"sessions/search"): "search_sessions",
    ("POST", r"sessions/([^/]+)/finish"): "finish_session",
    ("PUT", r"sessions/([^/]+)/project"): "assign_project",
    ("GET", r"sessions/([^/]+)/trace_export"): "trace_export",
    ("GET", r"sessions/([^/]+)"): "get_session",
    ("GET", r"samplers/([^/]+)"): "get_sampler",
    ("GET", r"training_runs"): "list_training_runs",
    ("GET", _RUN): "get_training_run",
    ("GET", _RUN + r"/checkpoints"): "list_checkpoints",
    ("GET", r"checkpoints"): "list_user_checkpoints",
    ("DELETE", _CHECKPOINT): "delete_checkpoint",
    ("POST", _CHECKPOINT + r"/publish"): "publish_checkpoint",
    ("DELETE", _CHECKPOINT + r"/publish"): "unpublish_checkpoint",
    ("PUT", _CHECKPOINT + r"/ttl"): "set_checkpoint_ttl",
    ("GET", _CHECKPOINT + r"/external_weights_urls"): "external_weights_urls",
    ("POST", r"weights_info"): "weights_info",
    ("POST", r"copy_weights"): "copy_weights",
    ("GET", r"audit"): "audit",
    ("GET", r"billing/usage/events"): "billing_usage",
    ("GET", r"billing/usage/checkpoints/current"): "checkpoint_storage",
}
_TYPES = {"weights": "training", "sampler_weights": "sampler", "external_weights": "external"}


class RestCalls:
    """The service's synchronous calls."""

    world: World
    base_url: str
    models: list[str]
    aliases: dict[str, str] = {}

    if TYPE_CHECKING:

        def session(self, request: Request, session_id: str) -> Session: ...

        def model(self, request: Request, model_id: str) -> Model: ...

        def sampler(self, request: Request, sampler_id: str) -> Sampler: ...

    def _healthz(self, request: Request, body: Any) -> Response:
        return as_json({"status": "ok"})

    def _get_server_capabilities(self, request: Request, body: Any) -> Response:
        models = [
            {
                "model_name": name,
                "max_context_length": 4096,
                "trainable": True,
                "sampleable": True,
            }
            for name in self.models
        ]
        return as_json({"supported_models": models, "aliases": self.aliases})

    def _api_key(self, request: Request, body: Any) -> Response:
        details = {"org_details": {"name": "org"}, "user_details": {"email": "a@b.c"}}
        return as_json({"key_id": 7, "name": "key", "note": "", "details": details})

    # Sessions.

    def _list_sessions(self, request: Request, body: Any) -> Response:
        own = [s.session_id for s in self.world.sessions.values() if _is_own(s, request)]
        return as_json({"sessions": _page(own, request)})

    def _get_session(self, request: Request, body: Any, session_id: str) -> Response:
        session = self.session(request, session_id)
        runs = [m.model_id for m in self.world.models.values() if m.session is session]
        samplers = [s.sampler_id for s in self.world.samplers.values() if s.session is session]
        return as_json(
            {
                "training_run_ids": runs,
                "sampler_ids": samplers,
                "user_metadata": session.user_metadata,
                "display_name": session.display_name,
            }
        )

    def _finish_session(self, request: Request, body: Any, session_id: str) -> Response:
        session = self.session(request, session_id)
        session.finished = session.finished or body
        return Response(204)

    def _assign_project(self, request: Request, body: Any, session_id: str) -> Response:
        self.session(request, session_id).project_id = body["project_id"]
        return Response(204)

    def _trace_export(self, request: Request, body: Any, session_id: str) -> Response:
        self.session(request, session_id)
        url = f"{self.base_url}/files/trace/session.pftrace"
        return as_json({"status": "ready", "url": url, "error": None})

    def _search_sessions(self, request: Request, body: Any) -> Response:
        found = [
            {
                "session_id": session.session_id,
                "created_at": WHEN,
                "owner": "tml:user:1",
                "project_id": session.project_id,
                "status": {"type": "active"},
                "checkpoints_count": 0,
            }
            for session in self.world.sessions.values()
            if _is_own(session, request)
        ]
        return as_json({"sessions": found, "next_cursor": None})

    def _get_sampler(self, request: Request, body: Any, sampler_id: str) -> Response:
        sampler = self.sampler(request, sampler_id)
        return as_json(
            {
                "sampler_id": sampler.sampler_id,
                "base_model": sampler.base_model,
                "model_path": sampler.model_path,
            }
        )

    # Runs.

    def _list_training_runs(self, request: Request, body: Any) -> Response:
        own = [m for m in self.world.models.values() if _is_own(m.session, request)]
        page = [self._run(model) for model in _page(own, request)]
        return as_json({"training_runs": page, "cursor": _cursor(own, request)})

    def _get_training_run(self, request: Request, body: Any, run_id: str) -> Response:
        return as_json(self._run(self.model(request, run_id)))

    def _run(self, model: Model) -> dict[str, Any]:
        saved = [c for c in self.world.checkpoints.values() if c.model is model]
        last = {
            kind: _describe(found[-1])
            for kind in ("weights", "sampler_weights")
            if (found := [c for c in saved if c.checkpoint_id.split("/")[0] == kind])
        }
        return {
            "training_run_id": model.model_id,
            "base_model": model.base_model,
            "model_owner": "tml:user:1",
            "is_lora": True,
            "lora_rank": model.lora_config["rank"],
            "last_request_time": WHEN,
            "corrupted": False,
            "last_checkpoint": last.get("weights"),
            "last_sampler_checkpoint": last.get("sampler_weights"),
            "user_metadata": model.user_metadata,
        }

    # Checkpoints.

    def _list_checkpoints(self, request: Request, body: Any, run_id: str) -> Response:
        model = self.model(request, run_id)
        found = [_describe(c) for c in self.world.checkpoints.values() if c.model is model]
        return as_json({"checkpoints": found, "cursor": None})

    def _list_user_checkpoints(self, request: Request, body: Any) -> Response:
        own = [c for c in self.world.checkpoints.values() if _is_own(c.model.session, request)]
        own.sort(key=lambda checkpoint: -checkpoint.number)
        page = [_describe(checkpoint) for checkpoint in _page(own, request)]
        return as_json({"checkpoints": page, "cursor": _cursor(own, request)})

    def _delete_checkpoint(self, request: Request, body: Any, run: str, name: str) -> Response:
        del self.world.checkpoints[self._saved(request, run, name).tinker_path]
        return Response(204)

    def _publish_checkpoint(self, request: Request, body: Any, run: str, name: str) -> Response:
        self._saved(request, run, name).is_public = True
        return Response(204)

    def _unpublish_checkpoint(self, request: Request, body: Any, run: str, name: str) -> Response:
        self._saved(request, run, name).is_public = False
        return Response(204)

    def _set_checkpoint_ttl(self, request: Request, body: Any, run: str, name: str) -> Response:
        self._saved(request, run, name).ttl_seconds = body["ttl_seconds"]
        return Response(204)

    def _external_weights_urls(self, request: Request, body: Any, run: str, name: str) -> Response:
        saved = self._saved(request, run, name)
        if not name.startswith("external_weights/"):
            raise Refusal(400, "only external weights can be downloaded")
        urls = {f: f"{self.base_url}/files/{saved.number}/{f}" for f in saved.files}
        return as_json({"urls": urls, "expires": FAR})

    def _file(self, request: Request, body: Any, number: str, name: str) -> Response:
        """A signed URL's content: no key is asked for."""
        for saved in self.world.checkpoints.values():
            if str(saved.number) == number and name in saved.files:
                kind = {"Content-Type": "application/octet-stream"}
                return Response(200, kind, saved.files[name])
        raise Refusal(404, f"no such file: {name}")

    def _weights_info(self, request: Request, body: Any) -> Response:
        saved = self._at(request, body["tinker_path"])
        lora = saved.model.lora_config
        return as_json(
            {
                "base_model": saved.model.base_model,
                "is_lora": True,
                "lora_rank": lora["rank"],
                **{k: lora.get(k, True) for k in ("train_unembed", "train_mlp", "train_attn")},
                "optimizer_config": saved.model.optimizer_config,
            }
        )

    def _copy_weights(self, request: Request, body: Any) -> Response:
        saved = self._at(request, body["source_path"])
        path = f"{saved.tinker_path}-copy"
        self.world.checkpoints[path] = Checkpoint(
            path, saved.model, saved.step, self.world.number(), files=dict(saved.files)
        )
        return as_json({"tinker_path": path})

    def _saved(self, request: Request, run_id: str, name: str) -> Checkpoint:
        return self._at(request, f"tinker://{run_id}/{name}")

    def _at(self, request: Request, path: str) -> Checkpoint:
        saved = self.world.checkpoints.get(path)
        if saved is None or not _is_own(saved.model.session, request):
            raise Refusal(404, f"no such checkpoint: {path}")
        return saved

    # Administration.

    def _audit(self, request: Request, body: Any) -> Response:
        return as_json({"entries": []})

    def _billing_usage(self, request: Request, body: Any) -> Response:
        return as_json({"data": [], "sessions": {}, "cost_data_through": None})

    def _checkpoint_storage(self, request: Request, body: Any) -> Response:
        return as_json({"effective_rate_usd_per_gigabyte_month": 0.1, "data": []})


def _describe(saved: Checkpoint) -> dict[str, Any]:
    return {
        "checkpoint_id": saved.checkpoint_id,
        "checkpoint_type": _TYPES[saved.checkpoint_id.split("/")[0]],
        "time": WHEN,
        "tinker_path": saved.tinker_path,
        "size_bytes": sum(map(len, saved.files.values())),
        "public": saved.is_public,
        "user_metadata": saved.user_metadata,
        "expires_at": FAR if saved.ttl_seconds else None,
    }


def _is_own(session: Session, request: Request) -> bool:
    return session.api_key == request.headers.get("x-api-key")


def _page(items: list[Any], request: Request) -> list[Any]:
    offset, limit = int(request.query.get("offset", 0)), int(request.query.get("limit", 20))
    return items[offset : offset + limit]


def _cursor(items: list[Any], request: Request) -> dict[str, int]:
    offset, limit = int(request.query.get("offset", 0)), int(request.query.get("limit", 20))
    return {"offset": offset, "limit": limit, "total_count": len(items)}
