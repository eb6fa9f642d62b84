"""The same loop through the official client and through ours gives the same numbers.

A template: on its own it uses a tiny model; with TINKER_BASE_URL, TINKER_API_KEY and PARITY_MODEL
set it compares on that server. What may differ, and why, is in docs/how-to/parity.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer

TOLERANCE = 1e-4  # per logprob, in float32; 5e-2 is usual for bfloat16
pytestmark = pytest.mark.timeout(450)
SCRIPT = Path(__file__).with_name("parity_run.py")
Both = tuple[dict[str, Any], dict[str, Any]]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Where the server is, and which of its models to compare on."""
    if "PARITY_MODEL" in os.environ:
        yield dict(os.environ)
        return
    folder = tmp_path_factory.mktemp("parity")
    make_tiny_model(folder / "model")
    models = (ServedModel(name="tiny", source=str(folder / "model")),)
    config = ServerConfig(data_dir=folder / "data", port=0, models=models, num_threads=1)
    with EmbeddedServer(config) as server:
        yield {
            **os.environ,
            "TINKER_BASE_URL": server.base_url,
            "TINKER_API_KEY": server.api_key,
            "PARITY_MODEL": "tiny",
        }


@pytest.fixture(scope="module")
def both(environment: dict[str, str]) -> Both:
    """What the two clients got; each runs in a process of its own."""
    return run("tinker", environment), run("tinkex", environment)


def run(client: str, environment: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), client, environment["PARITY_MODEL"]],
        env={**environment, "TINKER_TELEMETRY": "0"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, f"{client}:\n{done.stderr[-4000:]}"
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def test_losses_and_logprobs_of_training_agree(both: Both) -> None:
    official, ours = both
    assert ours["losses"] == pytest.approx(official["losses"], abs=TOLERANCE * 24)
    for step, expected in zip(ours["logprobs"], official["logprobs"], strict=True):
        assert step == pytest.approx(expected, abs=TOLERANCE)
    assert ours["losses"][-1] < ours["losses"][0], "it learned something"


def test_logprobs_of_a_prompt_agree(both: Both) -> None:
    official, ours = both
    assert ours["prompt_logprobs"] == pytest.approx(official["prompt_logprobs"], abs=TOLERANCE)


@pytest.mark.parametrize("name", ["greedy", "seeded"])
def test_samples_agree(both: Both, name: str) -> None:
    official, ours = (each["answers"][name] for each in both)
    assert ours["tokens"] == official["tokens"]
    assert ours["logprobs"] == pytest.approx(official["logprobs"], abs=TOLERANCE)
