"""A stand-in of the Hugging Face Hub: as much of its API as an upload needs."""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class Hub:
    """Repositories in memory; `refuse` makes every answer that status."""

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, Any]] = {}
        self.files: dict[tuple[str, str], dict[str, bytes]] = {}
        self.large: dict[str, bytes] = {}
        self.tokens: set[str | None] = set()
        self.messages: list[str] = []
        self.refuse: int | None = None
        self.refuse_files = False
        handler = type("Handler", (_Handler,), {"hub": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """The endpoint."""
        return f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def answer(self, method: str, path: str, body: bytes) -> dict[str, Any]:
        """What the hub says."""
        path = path.partition("?")[0]
        if path == "/api/repos/create":
            request = json.loads(body)
            name = f"{request['organization']}/{request['name']}"
            self.repos[name] = request
            return {"url": f"{self.url}/{name}"}
        if path == "/api/whoami-v2":
            return {"type": "user", "name": "me"}
        if path.startswith("/lfs/"):
            self.large[path.removeprefix("/lfs/")] = body
            return {}
        if path.endswith("/info/lfs/objects/batch"):
            return {
                "transfer": "basic",
                "objects": [self._slot(o) for o in json.loads(body)["objects"]],
            }
        if "/preupload/" in path:
            files = json.loads(body)["files"]
            return {"files": [{**_mode(each["path"]), "path": each["path"]} for each in files]}
        if "/commit/" in path:
            repo, _, revision = path.removeprefix("/api/models/").partition("/commit/")
            return self._commit(repo, revision, body)
        return {}

    def _slot(self, wanted: dict[str, Any]) -> dict[str, Any]:
        upload = {"href": f"{self.url}/lfs/{wanted['oid']}"}
        return {"oid": wanted["oid"], "size": wanted["size"], "actions": {"upload": upload}}

    def _commit(self, repo: str, revision: str, body: bytes) -> dict[str, Any]:
        files = self.files.setdefault((repo, revision), {})
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                self.messages.append(value["summary"])
            elif entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.large[value["oid"]]
        oid = "1" * 40
        return {"success": True, "commitOid": oid, "commitUrl": f"{self.url}/{repo}/commit/{oid}"}


def _mode(path: str) -> dict[str, Any]:
    is_large = path.endswith((".safetensors", ".bin"))
    return {"uploadMode": "lfs" if is_large else "regular", "shouldIgnore": False}


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def _do(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.hub.tokens.add(self.headers.get("authorization"))
        is_file = self.path.startswith("/lfs/")
        status = self.hub.refuse or (403 if is_file and self.hub.refuse_files else 200)
        answer = (
            {"error": "not for you"}
            if status != 200
            else self.hub.answer(self.command, self.path, body)
        )
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_HEAD = _do
