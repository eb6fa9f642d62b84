"""Promises: order, duplicates, holes, long polls, both result encodings."""

from __future__ import annotations

import threading
import time

import httpx
import msgspec
import pytest
import zstandard

from tests.server.driving import MODEL, Http, training_body
from tinkex.wire import legacy_json, protobuf


def test_later_numbers_wait_for_the_first_which_comes_last(http: Http) -> None:
    model = http.model()
    step = http.step(model, 3)["request_id"]
    second = http.train(model, 2).json()["request_id"]
    with pytest.raises(httpx.ReadTimeout):  # nothing may run before number 1
        http.call_within(0.3, "POST", "retrieve_future", {"request_id": step})
    first = http.train(model, 1).json()["request_id"]
    result = http.result(step)
    assert result["metrics"]["grad_norm"] > 0, "the step saw the gradients of both"
    for request_id in (first, second):
        assert http.result(request_id)["metrics"]["loss:sum"] > 0


def test_the_same_request_again_is_the_same_promise(http: Http) -> None:
    model = http.model()
    answers = [http.train(model, 1).json() for _ in range(3)]
    assert len({answer["request_id"] for answer in answers}) == 1
    once = http.step(model, 2)
    assert http.step(model, 2) == once
    reference = http.model()
    http.train(reference, 1)
    assert http.result(http.step(reference, 2)["request_id"])["metrics"].keys() == {"grad_norm"}
    again = http.result(http.step(model, 3)["request_id"])
    assert again["metrics"] == {"grad_norm": 0.0, "skipped": 1.0}, "applied once, nothing is left"


def test_another_request_under_a_used_number_is_refused_for_good(http: Http) -> None:
    model = http.model()
    http.step(model, 1)
    body = {"model_id": model, "seq_id": 1, "adam_params": {"learning_rate": 0.5}}
    refused = http.call("POST", "optim_step", body)
    assert refused.status_code == 422
    assert refused.json()["code"] == "sequence-conflict"
    assert http.train(model, 1).status_code == 422


def test_a_refused_number_counts_as_used(http: Http) -> None:
    model = http.model()
    bad = {"model_id": model, "seq_id": 1, "adam_params": {"learning_rate": -1}}
    assert http.call("POST", "optim_step", bad).status_code == 422
    began = time.monotonic()
    assert http.result(http.step(model, 2)["request_id"])["metrics"]
    assert time.monotonic() - began < 0.9, "it did not wait for the grace period"
    assert http.call("POST", "optim_step", {**bad, "adam_params": {}}).status_code == 422


def test_a_broken_training_body_counts_as_used_too(http: Http) -> None:
    model = http.model()
    broken = training_body(model, 1)[:-40] + b"\xff" * 40
    answer = http.client.post(
        "/api/v1/forward_backward",
        content=broken,
        headers={"X-API-Key": http.api_key, "Content-Type": "application/x-protobuf"},
    )
    assert answer.status_code == 422
    began = time.monotonic()
    http.result(http.step(model, 2)["request_id"])
    assert time.monotonic() - began < 0.9


def test_a_number_that_never_comes_is_passed_over_after_the_grace_period(http: Http) -> None:
    model = http.model()
    waiting = http.step(model, 2)["request_id"]
    assert http.result(waiting)["metrics"]
    late = http.train(model, 1)
    assert late.status_code == 422
    assert late.json()["code"] == "sequence-passed"


def test_a_waiting_poll_ends_with_its_result_and_not_with_its_time(http: Http) -> None:
    model = http.model()
    waiting = http.step(model, 2)["request_id"]
    held: list[float] = []

    def wait() -> None:
        began = time.monotonic()
        assert http.result(waiting)["metrics"]
        held.append(time.monotonic() - began)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.1)
    http.step(model, 1)
    thread.join()
    assert held[0] < 2.0, "a poll is held for 3 s if nothing wakes it"


def test_polls_are_held_and_then_let_go(http: Http) -> None:
    model = http.model()
    waiting = http.step(model, 3)["request_id"]
    blocker = http.step(model, 2)["request_id"]
    began = time.monotonic()
    answer = http.poll(waiting)
    held_s = time.monotonic() - began
    assert answer.status_code in {200, 408}
    assert held_s > 0.5, "an unfinished result is waited for"
    http.result(blocker)


def test_unknown_requests_are_not_found(http: Http) -> None:
    answer = http.poll("no-such-request")
    assert answer.status_code == 404
    assert answer.json()["code"] == "unknown-request"


def test_results_come_in_the_requested_encoding(http: Http) -> None:
    model = http.model()
    request_id = http.train(model, 1).json()["request_id"]
    as_json = http.result(request_id)
    answer = http.poll(request_id, accept="application/x-protobuf")
    assert answer.headers["content-type"] == "application/x-protobuf"
    decoded = protobuf.decode_forward_backward_output(answer.content)
    assert msgspec.json.decode(legacy_json.encode_forward_backward_output(decoded)) == as_json


def test_compressed_bodies_are_read_and_bombs_are_not(http: Http) -> None:
    model = http.model()
    headers = {
        "X-API-Key": http.api_key,
        "Content-Type": "application/x-protobuf",
        "Content-Encoding": "zstd",
    }
    body = zstandard.compress(training_body(model, 1, tokens=100))
    answer = http.client.post("/api/v1/forward_backward", content=body, headers=headers)
    assert http.result(answer.json()["request_id"])["metrics"]
    bomb = zstandard.compress(bytes(200_000_000))
    answer = http.client.post("/api/v1/forward_backward", content=bomb, headers=headers)
    assert answer.status_code == 413
    answer = http.client.post("/api/v1/forward_backward", content=b"no zstd", headers=headers)
    assert answer.status_code == 422


def test_completions_of_a_sampling_session_come_once_each(http: Http) -> None:
    session = http.session()
    sampler = http.post(
        "create_sampling_session",
        {"session_id": session, "sampling_session_seq_id": 0, "base_model": MODEL},
    )["sampling_session_id"]
    request = {
        "sampling_session_id": sampler,
        "num_samples": 1,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]},
        "sampling_params": {"max_tokens": 2},
    }
    promises = [http.post("asample", {**request, "seq_id": n}) for n in range(5)]
    assert [len(promise["sample_sequence_ids"]) for promise in promises] == [1] * 5
    assert http.post("asample", {**request, "seq_id": 0}) == promises[0]
    seen, cursor = [], 0
    target = {"type": "sampling_session", "sampling_session_id": sampler, "cloned_sampler_id": 0}
    while len(seen) < 5:
        page = http.post("retrieve_futures", {"target": target, "prev_cursor": cursor})
        seen += [each["request_id"] for each in page["completions"]]
        cursor = page["cursor"]
    assert sorted(seen) == sorted(promise["request_id"] for promise in promises)
    other = {**target, "cloned_sampler_id": 1}
    assert http.post("retrieve_futures", {"target": other})["completions"] == []
    assert http.post("join_sampling_session", {"sampling_session_id": sampler}) == {
        "type": "join_sampling_session",
        "client_counter": 1,
    }
