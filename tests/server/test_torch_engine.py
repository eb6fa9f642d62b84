"""The whole server with the real engine and a tiny random model, judged by the official client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.children import run_module
from tests.server.test_restart import run_disturbed
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer


@pytest.fixture(scope="module")
def tiny_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    from tinkex.engine.convert.tiny_model import make_tiny_model

    folder = make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "smollm")
    config = ServerConfig(
        data_dir=tmp_path_factory.mktemp("tiny-server"),
        port=0,
        models=(ServedModel(name="tiny", source=str(folder)),),
        num_threads=1,
    )
    with EmbeddedServer(config) as server:
        yield server


@pytest.fixture(scope="module")
def seen(tiny_server: EmbeddedServer) -> dict[str, Any]:
    outcome = run_module("tests.server.torch_scenarios", tiny_server.base_url, tiny_server.api_key)
    assert isinstance(outcome, dict)
    return outcome


def close(a: list[float], b: list[float], tolerance: float = 1e-4) -> bool:
    return len(a) == len(b) and all(abs(x - y) <= tolerance for x, y in zip(a, b, strict=True))


def test_a_new_adapter_is_the_base_model(seen: dict[str, Any]) -> None:
    assert close(seen["start"], seen["base"])


def test_the_loss_falls(seen: dict[str, Any]) -> None:
    assert seen["losses"][-1] < 0.9 * seen["losses"][0]


def test_trainer_and_sampler_agree(seen: dict[str, Any]) -> None:
    assert close(seen["trainer"], seen["late"])
    assert close(seen["resumed_scores"], seen["named"])
    assert close(seen["sampled_logprobs"], seen["scored_logprobs"])


def test_an_old_snapshot_is_what_it_was(seen: dict[str, Any]) -> None:
    assert close(seen["early_after"], seen["base"])
    assert not close(seen["late"], seen["base"], 1e-2)


def test_a_saved_state_resumes_bit_for_bit(seen: dict[str, Any]) -> None:
    assert seen["next"] == seen["resumed"]


def test_seeds_and_stops(seen: dict[str, Any]) -> None:
    first, again = seen["samples"]
    assert first == again
    assert first[0] != first[1]
    cut = first[0].index(seen["stop"]) + 1
    assert seen["stopped"] == first[0][:cut], "the stop token is part of the answer"
    assert seen["stop_reason"] == "stop"


def test_exports_are_peft_folders_and_the_tokenizer_loads(seen: dict[str, Any]) -> None:
    assert {"adapter_config.json", "adapter_model.safetensors"} <= set(seen["files"])
    assert seen["text"] == "hello"


def test_kill_9_in_the_middle_of_real_training(tiny_server: EmbeddedServer) -> None:
    expected = run_disturbed(tiny_server, lambda: None, at=-1, model="tiny")

    def kill_and_restart() -> None:
        tiny_server.kill()
        tiny_server.start()

    seen = run_disturbed(tiny_server, kill_and_restart, at=4, model="tiny")
    assert seen["losses"] == expected["losses"], "bit by bit"
    assert seen["norms"] == expected["norms"]
    assert seen["late_scores"] == expected["late_scores"]
    assert seen["tokens"] == expected["tokens"]
