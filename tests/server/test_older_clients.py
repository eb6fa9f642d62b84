"""Shapes that only older clients send, and those clients themselves where they are installed.

Folders named `tinker-<version>` with a venv each, under the folder that TINKEX_CONTRACT_VENVS
names, are driven through the whole loop; `python -m tests.server.make_venvs FOLDER` makes them.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from tests.server.driving import Http
from tests.server.make_venvs import VERSIONS

from tinkex.server.embedded import EmbeddedServer

DATUM = {
    "model_input": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]},
    "loss_fn_inputs": {
        "target_tokens": {"data": [2, 3, 4], "dtype": "int64", "shape": [3]},
        "weights": {"data": [1.0, 1.0, 1.0], "dtype": "float32", "shape": [3]},
    },
}


def test_training_in_json(http: Http) -> None:
    model = http.model()
    inner = {"data": [DATUM], "loss_fn": "cross_entropy"}
    first = http.post("forward", {"forward_input": inner, "model_id": model, "seq_id": 1})
    second = http.post(
        "forward_backward", {"forward_backward_input": inner, "model_id": model, "seq_id": 2}
    )
    results = [http.result(promise["request_id"]) for promise in (first, second)]
    assert results[0]["loss_fn_outputs"] == results[1]["loss_fn_outputs"]
    assert results[0]["loss_fn_outputs"][0]["logprobs"]["shape"] == [3]
    assert http.result(http.step(model, 3)["request_id"])["metrics"]["grad_norm"] > 0


def test_requests_without_numbers_run_in_the_order_they_come(http: Http) -> None:
    model = http.model()
    promises = [
        http.post("optim_step", {"model_id": model, "adam_params": {}})["request_id"]
        for _ in range(3)
    ]
    assert all(http.result(promise)["metrics"] for promise in promises)


def test_a_checkpoint_as_an_archive(http: Http) -> None:
    model = http.model()
    save = {"model_id": model, "path": "a", "seq_id": 1}
    http.result(http.post("save_weights", save)["request_id"])
    answer = http.call("GET", f"training_runs/{model}/checkpoints/weights/a/archive")
    assert answer.status_code == 302
    assert answer.headers["expires"]
    content = http.client.get(answer.headers["location"]).content
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        assert archive.getnames() == ["null_adapter.json"]


def test_unloading_is_kept_at_once(http: Http) -> None:
    model = http.model()
    promise = http.post("unload_model", {"model_id": model})
    assert http.result(promise["request_id"])["model_id"] == model


@pytest.mark.parametrize("version", VERSIONS)
def test_the_loop_with_an_older_client(version: str, server: EmbeddedServer) -> None:
    root = os.environ.get("TINKEX_CONTRACT_VENVS", "")
    python = Path(root) / f"tinker-{version}" / "bin" / "python"
    if not root or not python.exists():
        pytest.skip(f"no venv with tinker {version}")
    script = Path(__file__).with_name("old_client_loop.py")
    done = subprocess.run(
        [str(python), str(script), server.base_url, server.api_key],
        env={**os.environ, "TINKER_TELEMETRY": "0"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.strip().splitlines()[-1])
    assert seen["version"] == version
    assert seen["num_outputs"] == 1030
    assert seen["sequences"] == 2
    assert seen["resumed"] == seen["loss"]
