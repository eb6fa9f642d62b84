"""Shapes that only older clients send; those clients themselves run in the contract suite."""

from __future__ import annotations

import io
import tarfile

from tests.server.driving import Http

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
