"""A number whose request is refused for good counts as used, whatever the reason.

The server waits an hour for a missing number, so a number that is not counted makes the test fail.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest
import zstandard

from tests.server.children import run_module
from tests.server.driving import Http, null_config, training_body
from tests.server.submit.test_bodies import BROKEN, answer_on, begin
from tests.support.keys import new_tenant_key
from tinkex.scheduler import SchedulerConfig
from tinkex.server.embedded import EmbeddedServer
from tinkex.wire.limits import Limits

PROTOBUF, JSON = "application/x-protobuf", "application/json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("strict")


@pytest.fixture(scope="module")
def strict(folder: Path) -> Iterator[EmbeddedServer]:
    """A server that does not pass over missing numbers while a test runs."""
    config = null_config(
        folder,
        limits=Limits(max_body_bytes=2_000_000, max_json_bytes=1_000_000),
        scheduler=SchedulerConfig(hole_grace_s=3600.0),
        poll_hold_s=20.0,
    )
    with EmbeddedServer(config) as running:
        yield running


@pytest.fixture
def tenant(strict: EmbeddedServer) -> Iterator[Http]:
    with httpx.Client(base_url=strict.base_url, timeout=60) as client:
        yield Http(client, strict.api_key)


def send(http: Http, path: str, body: bytes, kind: str = JSON, **headers: str) -> httpx.Response:
    sent = {"X-API-Key": http.api_key, "Content-Type": kind, **headers}
    return http.client.post(f"/api/v1/{path}", content=body, headers=sent)


def assert_used(http: Http, model: str, seq_id: int) -> None:
    """The number after it runs, and the number itself is refused."""
    step = http.step(model, seq_id + 1)
    assert http.poll(step["request_id"]).status_code == 200, f"number {seq_id} is waited for"
    again = http.train(model, seq_id)
    assert (again.status_code, again.json()["code"]) == (422, "sequence-conflict")


def old_training(model: str, seq_id: int, **changes: Any) -> bytes:
    """A training request as clients before 0.25 send it: the number comes last."""
    datum = {
        "model_input": {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]},
        "loss_fn_inputs": {"target_tokens": {"data": [2, 3], "dtype": "int64"}},
    }
    inner = {"data": [datum | changes], "loss_fn": "cross_entropy"}
    return json.dumps(
        {"forward_backward_input": inner, "model_id": model, "seq_id": seq_id},
        separators=(",", ":"),
    ).encode()


class Make(Protocol):
    """Makes the body of a request of a model under a number."""

    def __call__(self, model: str, seq_id: int) -> bytes: ...


def body(text: str) -> Make:
    """A body given as text, in which MODEL and 77 stand for the model and the number."""

    def make(model: str, seq_id: int) -> bytes:
        return text.replace("77", str(seq_id)).replace("MODEL", model).encode("latin-1")

    return make


def save(**fields: Any) -> Make:
    """A save, its fields in the official client's order: the number comes after the name."""
    return body(json.dumps({"model_id": "MODEL", "path": "a", "seq_id": 77} | fields))


def load(**fields: Any) -> Make:
    """A load, its fields in the official client's order."""
    return body(json.dumps({"model_id": "MODEL", "seq_id": 77, "optimizer": False} | fields))


def step(learning_rate: str) -> Make:
    """An optimizer step."""
    text = '{"model_id":"MODEL","seq_id":77,"adam_params":{"learning_rate":RATE}}'
    return body(text.replace("RATE", learning_rate))


POINTER = {"chunks": [{"type": "image_asset_pointer", "format": "png", "location": "x"}]}
NO_NUMBER = {"weights": {"data": [float("nan")], "dtype": "float32"}}
CHECKPOINT = "tinker://x:train:0/weights/a"

REFUSED: dict[str, tuple[str, int, Make]] = {
    "wrong access token": (
        "load_weights",
        401,
        load(path=CHECKPOINT, weights_access_token="tml-wrong"),
    ),
    "no path of a checkpoint": ("load_weights", 422, load(path="x")),
    "wrong type": ("optim_step", 422, step('"fast"')),
    "NaN": ("optim_step", 422, step("NaN")),
    "infinity": ("optim_step", 422, step("-Infinity")),
    "lone surrogate": ("save_weights", 422, save(path="\ud800")),
    "not UTF-8": ("save_weights", 422, body('{"model_id":"MODEL","path":"\xff","seq_id":77}')),
    "cut": ("optim_step", 422, body('{"model_id":"MODEL","seq_id":77,"adam_params":{"lear')),
    "too deep": (
        "save_weights",
        422,
        body('{"model_id":"MODEL","seq_id":77,"user_metadata":' + "[" * 99),
    ),
    "large metadata": ("save_weights", 422, save(user_metadata={"k": "v" * 20_000})),
    "huge metadata": ("save_weights", 413, save(user_metadata={"k": "v" * 900_000})),
    "huge name": ("save_weights", 413, save(path="a" * 900_000)),
    "huge path": ("load_weights", 413, load(path="a" * 900_000)),
    "image pointer": ("forward_backward", 422, partial(old_training, model_input=POINTER)),
    "old data with NaN": ("forward_backward", 422, partial(old_training, loss_fn_inputs=NO_NUMBER)),
    "old data too large": ("forward", 413, partial(old_training, note="x" * 1_500_000)),
    "too many recipients": (
        "save_weights_external",
        422,
        save(age_encryption_recipients=["x"] * 11),
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_refused_json_request_uses_up_its_number(tenant: Http, reason: str) -> None:
    path, status, make = REFUSED[reason]
    model = tenant.model()
    answer = send(tenant, path, make(model, 1))
    assert answer.status_code == status, answer.text
    assert_used(tenant, model, 1)


@pytest.mark.parametrize("packing", ["identity", "zstd"])
def test_json_that_is_declared_as_something_else_uses_up_its_number(
    tenant: Http, packing: str
) -> None:
    model = tenant.model()
    plain = old_training(model, 1)
    sent = zstandard.compress(plain) if packing == "zstd" else plain
    answer = send(tenant, "forward_backward", sent, "text/plain", **{"Content-Encoding": packing})
    assert answer.status_code == 422, answer.text
    assert_used(tenant, model, 1)


def test_the_content_type_may_be_written_in_upper_case(tenant: Http) -> None:
    model = tenant.model()
    for seq_id, kind in enumerate(("Application/JSON", "APPLICATION/JSON; charset=UTF-8"), 1):
        answer = send(tenant, "forward_backward", old_training(model, seq_id), kind)
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("how", sorted(BROKEN.keys() - {"empty", "not compressed"}))
def test_a_body_that_cannot_be_decompressed_uses_up_its_number(tenant: Http, how: str) -> None:
    model = tenant.model()
    sent = BROKEN[how](training_body(model, 1, tokens=300, copies=200))
    answer = send(tenant, "forward_backward", sent, PROTOBUF, **{"Content-Encoding": "zstd"})
    assert answer.status_code == 422, answer.text
    assert_used(tenant, model, 1)


@pytest.mark.parametrize("packing", ["identity", "zstd"])
@pytest.mark.parametrize("is_declared", [False, True])
def test_a_training_body_too_large_to_read_uses_up_its_number(
    tenant: Http, packing: str, is_declared: bool
) -> None:
    model = tenant.model()
    plain = training_body(model, 1, tokens=100_000, copies=30)
    headers = {"Content-Encoding": packing}
    whole = zstandard.compress(plain) if packing == "zstd" else plain
    pieces = (whole[at : at + 50_000] for at in range(0, len(whole), 50_000))
    sent: Any = whole if is_declared else pieces
    answer = send(tenant, "forward_backward", sent, PROTOBUF, **headers)
    assert answer.status_code == 413
    assert_used(tenant, model, 1)


def test_a_training_body_that_is_no_message_uses_up_its_number(tenant: Http) -> None:
    model = tenant.model()
    sent = training_body(model, 1) + b"\x1a\xff"
    assert send(tenant, "forward_backward", sent, PROTOBUF).status_code == 422
    assert_used(tenant, model, 1)


def test_the_number_is_found_behind_other_fields(tenant: Http) -> None:
    model = tenant.model()
    name = b"\x0a" + bytes([len(model)]) + model.encode()
    sent = b"\x22\x05wrong" + b"\x10\x01" + name + b"\x1a\xff"
    assert send(tenant, "forward_backward", sent, PROTOBUF).status_code == 422
    assert_used(tenant, model, 1)


def test_fields_inside_others_are_not_taken_for_the_number(tenant: Http) -> None:
    model = tenant.model()
    inner = {"model_id": model, "seq_id": 2}
    sent = json.dumps({"model_id": model, "user_metadata": inner, "seq_id": 1, "path": 7}).encode()
    assert send(tenant, "save_weights", sent).status_code == 422
    assert_used(tenant, model, 1)
    fine = send(tenant, "save_weights", save()(model, 3))
    assert fine.status_code == 200


def test_a_client_that_goes_away_may_send_its_number_again(
    strict: EmbeddedServer, tenant: Http
) -> None:
    model = tenant.model()
    with begin(strict, "optim_step", "Content-Length: 900") as connection:
        connection.sendall(f'{{"model_id":"{model}","seq_id":1,'.encode())
    fine = tenant.train(model, 1)
    assert fine.status_code == 200
    assert tenant.poll(fine.json()["request_id"]).status_code == 200


def test_another_tenants_numbers_are_left_alone(folder: Path, tenant: Http) -> None:
    key = new_tenant_key(folder)
    other, model = Http(tenant.client, key), tenant.model()
    for path, _, make in REFUSED.values():
        assert send(other, path, make(model, 1)).status_code >= 400
    send(other, "forward_backward", training_body(model, 1) + b"\x1a\xff", PROTOBUF)
    mine = tenant.train(model, 1)
    assert mine.status_code == 200, mine.text


def test_the_official_client_goes_on_after_each_refusal(strict: EmbeddedServer) -> None:
    failures = run_module("tests.server.official_refusals", strict.base_url, strict.api_key)
    assert failures
    assert {name: why for name, why in failures.items() if why} == {}


def test_a_refusal_is_answered_before_the_rest_of_the_body(strict: EmbeddedServer) -> None:
    with begin(strict, "optim_step", "Content-Length: 900000") as connection:
        connection.sendall(b'{"model_id":"x:train:0","seq_id":1,')
        assert answer_on(connection)[0] == 413


def test_refusals_whose_number_cannot_be_read_leave_it_free(
    strict: EmbeddedServer, tenant: Http
) -> None:
    model = tenant.model()
    sent = training_body(model, 1)
    packed = send(tenant, "forward_backward", sent, PROTOBUF, **{"Content-Encoding": "br"})
    assert (packed.status_code, packed.json()["code"]) == (422, "unknown-encoding")
    announced = "Content-Length: 900000", "Expect: 100-continue"
    with begin(strict, "optim_step", *announced) as connection:
        assert answer_on(connection)[0] == 413, "the body was not asked for"
    promise = tenant.train(model, 1).json()
    assert tenant.poll(promise["request_id"]).status_code == 200
