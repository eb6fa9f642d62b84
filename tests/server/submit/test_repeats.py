"""Requests whose answer was lost are sent again: they end as if they had been sent once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.server.driving import Http

AGAIN = {"X-Stainless-Retry-Count": "1"}


def save(http: Http, model: str, seq_id: int, name: str | None) -> Any:
    body = {"model_id": model, "path": name, "seq_id": seq_id}
    return http.post("save_weights_for_sampler", body)


def test_a_deletion_sent_again_is_answered_as_it_was(
    http: Http, make_key: Callable[[], str]
) -> None:
    model = http.model()
    http.result(save(http, model, 1, "gone")["request_id"])
    path = f"training_runs/{model}/checkpoints/sampler_weights/gone"
    assert http.call("DELETE", path, **AGAIN).status_code == 200, "the first one may be called so"
    assert http.call("DELETE", path, **AGAIN).status_code == 200
    assert http.call("DELETE", path).status_code == 404, "a deletion of its own finds nothing"
    assert http.call("DELETE", path.replace("gone", "never"), **AGAIN).status_code == 404
    stranger = Http(http.client, make_key())
    assert stranger.call("DELETE", path, **AGAIN).status_code == 404


def test_a_name_used_again_can_be_deleted_again(http: Http) -> None:
    model = http.model()
    path = f"training_runs/{model}/checkpoints/sampler_weights/twice"
    for seq_id in (1, 2):
        http.result(save(http, model, seq_id, "twice")["request_id"])
        assert http.call("DELETE", path).status_code == 200
    assert http.get(f"training_runs/{model}/checkpoints")["checkpoints"] == []


def test_a_save_without_a_name_sent_again_is_the_same_save(http: Http) -> None:
    model = http.model()
    promise = save(http, model, 1, None)
    assert save(http, model, 1, None) == promise
    other = save(http, model, 2, None)
    paths = {http.result(each["request_id"])["path"] for each in (promise, other)}
    assert len(paths) == 2
