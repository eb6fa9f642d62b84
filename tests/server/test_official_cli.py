"""The official command line against the server: what it lists, downloads and deletes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.server.driving import Http
from tinkex.server.embedded import EmbeddedServer


def test_the_official_command_line(server: EmbeddedServer, http: Http, tmp_path: Path) -> None:
    model = http.model()
    save = {"model_id": model, "path": "one", "seq_id": 1}
    path = http.result(http.post("save_weights", save)["request_id"])["path"]
    program = Path(sys.executable).with_name("tinker")
    variables = {"TINKER_API_KEY": server.api_key, "TINKER_BASE_URL": server.base_url}

    def tinker(*arguments: str) -> str:
        done = subprocess.run(
            [str(program), "-f", "json", *arguments],
            env={**os.environ, **variables, "TINKER_TELEMETRY": "0"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        # Its own threads sometimes abort an orderly end, after everything was done and told.
        assert done.returncode in (0, -signal.SIGABRT), done.stderr
        return done.stdout

    assert json.loads(tinker("auth", "whoami"))["user_urn"] == "tml:user:bootstrap"
    assert json.loads(tinker("run", "info", model))["training_run_id"] == model
    tinker("checkpoint", "download", path, "-o", str(tmp_path))
    assert [each.name for each in tmp_path.rglob("*.json")] == ["null_adapter.json"]
    assert json.loads(tinker("checkpoint", "delete", path, "-y"))["deleted_count"] == 1
    assert http.get(f"training_runs/{model}/checkpoints")["checkpoints"] == []
