"""Cancelling over HTTP: whose work it reaches, and what a restart makes of what was cancelled."""

from __future__ import annotations

from pathlib import Path

import httpx

from tests.server.driving import Http, null_config
from tests.support.keys import new_tenant_key
from tests.support.waiting import wait_until
from tinkex.scheduler import SchedulerConfig
from tinkex.server.embedded import EmbeddedServer


def test_what_was_cancelled_does_not_run_after_a_restart(tmp_path: Path) -> None:
    config = null_config(tmp_path, scheduler=SchedulerConfig(hole_grace_s=600.0))
    with EmbeddedServer(config) as server, httpx.Client(base_url=server.base_url) as client:
        http, key = Http(client, server.api_key), server.api_key
        model = http.model()
        kept = http.train(model, 2).json()["request_id"]
        cancelled = http.train(model, 3).json()["request_id"]
        assert http.post("cancel", {"request_id": cancelled})["operations"] == 1
    with EmbeddedServer(config) as server, httpx.Client(base_url=server.base_url) as client:
        http = Http(client, key)
        assert http.poll(cancelled).json()["code"] == "cancelled"
        first = http.train(model, 1).json()["request_id"]  # the others waited for it
        assert http.result(first)["metrics"]
        assert http.result(kept)["metrics"]
        again = http.train(model, 3)
        assert again.status_code == 422
        assert again.json()["code"] == "sequence-conflict"
        assert http.result(http.train(model, 4).json()["request_id"])["metrics"]


def test_samples_are_cancelled_but_not_those_of_others(tmp_path: Path) -> None:
    config = null_config(tmp_path, device="null:0.05")
    with EmbeddedServer(config) as server, httpx.Client(base_url=server.base_url) as client:
        key = new_tenant_key(tmp_path)
        mine, other = Http(client, server.api_key), Http(client, key)
        ours, theirs = sampled(mine, 40), sampled(other, 2)
        assert other.post("cancel", {"request_id": ours[0]}, status=404)
        done = mine.post("cancel", {"samples": True})["samples"]
        assert done > 0
        codes = [mine.result_or_error(each).get("code") for each in ours]
        assert codes.count("cancelled") == done
        for request_id in theirs:
            assert "sequences" in other.result(request_id)
        assert mine.post("cancel", {"samples": True}) == {"samples": 0, "operations": 0}
        assert mine.post("cancel", {}, status=422)
        wait_until(lambda: mine.get("status")["queue"]["sampling"]["running_requests"] == 0)


def sampled(http: Http, count: int) -> list[str]:
    """The ids of requests to sample from the base model."""
    session = http.post(
        "create_sampling_session",
        {"session_id": http.session(), "sampling_session_seq_id": 0, "base_model": "null"},
    )["sampling_session_id"]
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]}
    request = {"sampling_session_id": session, "prompt": prompt, "num_samples": 2}
    params = {"sampling_params": {"max_tokens": 200}}
    return [
        http.post("asample", {**request, **params, "seq_id": number})["request_id"]
        for number in range(count)
    ]
