"""Losses that clients upload: one pass as good as two, in both clients, and after a crash."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import tinkex
from tests.server import custom_loss_run
from tests.server.children import run_module
from tinkex import types
from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer

SURROGATE = "surrogate_loss:sum"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    folder = make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "smollm")
    config = ServerConfig(
        data_dir=tmp_path_factory.mktemp("custom-losses"),
        port=0,
        models=(ServedModel(name="tiny", source=str(folder)),),
        num_threads=1,
    )
    with EmbeddedServer(config) as running:
        yield running


@pytest.fixture
def service(server: EmbeddedServer) -> Iterator[tinkex.ServiceClient]:
    with tinkex.ServiceClient(base_url=server.base_url, api_key=server.api_key) as client:
        yield client


def trained(
    service: tinkex.ServiceClient, handles: Any, num_steps: int = 1, **more: Any
) -> list[Any]:
    training = service.create_lora_training_client("tiny", rank=4, seed=1)
    return custom_loss_run.steps(training, types, handles, num_steps, **more)


def make_handles(service: tinkex.ServiceClient) -> list[Any]:
    return [
        (fn, service.create_custom_loss(fn, ranks).result(60))
        for fn, ranks in custom_loss_run.CASES
    ]


def test_one_pass_gives_what_two_passes_give(service: tinkex.ServiceClient) -> None:
    on_server = make_handles(service)
    assert all(handle.loss_id for _, handle in on_server)
    here = [(fn, msgspec.structs.replace(handle, loss_id=None)) for fn, handle in on_server]
    one_pass, two_passes = trained(service, on_server), trained(service, here)
    for (metrics, step), (expected, expected_step) in zip(one_pass, two_passes, strict=True):
        del expected[SURROGATE]
        assert metrics == pytest.approx(expected, rel=1e-6, abs=1e-6)
        assert step == pytest.approx(expected_step, rel=1e-6)
        assert step["grad_norm"] > 0


def test_both_clients_see_the_same(server: EmbeddedServer) -> None:
    seen = {
        client: run_module(
            "tests.server.custom_loss_run", client, server.base_url, server.api_key, "tiny"
        )
        for client in ("tinkex", "tinker")
    }
    assert all(all(each["ids"]) for each in seen.values()), "the losses were uploaded"
    ours, theirs = (each["steps"] for each in seen.values())
    assert [dict(sorted(m.items())) for m, _ in ours] == [
        dict(sorted(m.items())) for m, _ in theirs
    ]
    assert [step for _, step in ours] == [step for _, step in theirs]
    assert seen["tinkex"]["refusal"] == "runs here: None"
    assert "UnprocessableEntityError" in seen["tinker"]["refusal"]
    assert "fft_rfft" in seen["tinker"]["refusal"]


def test_a_kill_in_the_middle_changes_no_bit(
    server: EmbeddedServer, service: tinkex.ServiceClient
) -> None:
    """Operations that were applied are repeated with their loss by the server that comes back."""
    handles = make_handles(service)
    expected = trained(service, handles, 2)
    training = service.create_lora_training_client("tiny", rank=4, seed=1)
    first = custom_loss_run.steps(training, types, handles)
    server.kill()
    server.start()
    assert first + custom_loss_run.steps(training, types, handles) == expected


def test_a_loss_that_fails_on_its_data_is_an_error_of_the_request(
    service: tinkex.ServiceClient,
) -> None:
    def wrong(logprobs: Any, old: Any) -> Any:
        return (logprobs * old[:3]).sum(), {}

    handle = service.create_custom_loss(wrong, {"logprobs": 1, "old": 1}).result(60)
    training = service.create_lora_training_client("tiny", rank=4, seed=1)
    data = custom_loss_run.batch(types, custom_loss_run.clipped)
    with pytest.raises(tinkex.errors.RequestFailedError, match=r"operator\.mul.*must match"):
        training.forward_backward_custom(data, handle).result(60)
    assert training.optim_step(types.AdamParams()).result(60).metrics["skipped"] == 1
