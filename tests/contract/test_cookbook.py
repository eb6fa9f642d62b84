"""`tinker-cookbook` runs with Tinkex in place of the official client.

Its modules import, and its recipes train on a tiny model; what they report of it is checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.contract import cookbook
from tests.contract.cookbook_data import make_datasets
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer

# The cookbook chooses its renderer by the name of the model; here a tiny one has this name.
MODEL = "Qwen/Qwen3-8B-Base"
STEPS = 2

# Also the time to install the cookbook for the first time.
pytestmark = pytest.mark.timeout(900)

Shared = Callable[[str, Callable[[], Any]], Any]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory, shared: Shared) -> dict[str, Any]:
    """What each recipe wrote to its log folder."""
    found: dict[str, Any] = shared("cookbook", lambda: _run_recipes(tmp_path_factory.mktemp("cb")))
    return found


def _run_recipes(folder: Path) -> Any:
    from tinkex.engine.convert.tiny_model import make_tiny_model

    make_tiny_model(folder / MODEL, "smollm", max_position_embeddings=2048)
    make_datasets(folder)
    config = ServerConfig(
        data_dir=folder / "server",
        port=0,
        models=(ServedModel(name=MODEL, source=str(folder / MODEL)),),
        num_threads=1,
    )
    with EmbeddedServer(config) as server:
        arguments = ("recipes", server.base_url, server.api_key, MODEL)
        return cookbook.run("tinkex", *arguments, cwd=folder)


def test_every_module_imports_that_imports_with_the_official_client(tmp_path: Path) -> None:
    ours, theirs = (cookbook.run(sdk, "imports", cwd=tmp_path) for sdk in ("tinkex", "tinker"))
    assert ours["origin"] == "tinkex.compat"
    assert theirs["origin"] != "tinkex.compat"
    assert ours["modules"] == theirs["modules"]
    assert len(ours["modules"]) - len(theirs["failures"]) > 200
    assert ours["failures"] == theirs["failures"]


RECIPES = (
    *("supervised_loop", "supervised_basic", "rl_loop"),
    *("math_rl", "math_rl_async", "math_rl_stream"),
    *("dpo", "distill"),
)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_runs_all_steps_and_saves(reports: dict[str, Any], recipe: str) -> None:
    report = reports[recipe]
    assert [row["step"] for row in report["metrics"]] == list(range(STEPS))
    assert report["checkpoints"][-1]["sampler_path"].startswith("tinker://")


@pytest.mark.parametrize("recipe", sorted(set(RECIPES) - {"dpo"}))
def test_a_recipe_trains(reports: dict[str, Any], recipe: str) -> None:
    assert max(row.get("grad_norm", 0.0) for row in reports[recipe]["metrics"]) > 0


@pytest.mark.parametrize("recipe", ["math_rl", "math_rl_async", "math_rl_stream", "distill"])
def test_sampled_logprobs_are_those_of_training(reports: dict[str, Any], recipe: str) -> None:
    first = reports[recipe]["metrics"][0]
    assert first["optim/kl_sample_train_v1"] == pytest.approx(0.0, abs=1e-4)
    assert first["optim/kl_sample_train_v2"] == pytest.approx(0.0, abs=1e-6)


def test_dpo_begins_at_its_reference(reports: dict[str, Any]) -> None:
    first, second = (row["dpo_loss"] for row in reports["dpo"]["metrics"])
    assert first == pytest.approx(math.log(2), abs=1e-4)
    assert second != first


def test_the_student_differs_from_its_teacher(reports: dict[str, Any]) -> None:
    assert reports["distill"]["metrics"][0]["teacher_kl"] != 0.0
