"""With the real engine too, a run that was killed again and again ends as one that was not: bit by
bit, in every loss, every gradient norm and every saved file."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.campaign import LIBRARIES, Campaign, busy_config
from tests.support.soak import IS_SOAK, SEED
from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.server.config import ServedModel, ServerConfig

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not IS_SOAK, reason="tests/server/test_torch_engine.py is its short form"),
]
KILLS = (
    "server",
    "engine",
    "both",
    "execute.after=forward_backward:2",
    "engine.call.after=optim_step:2",
    "engine.batch.middle:2!",
    "snapshot.kept",
    "engine.folder.synced=snapshots:1!",
    "replay.step:2",
    "result.kept=optim_step:2",
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "smollm")


def config(
    data_dir: Path, model: Path, *, is_deterministic: bool, workers: int = 1
) -> ServerConfig:
    """A server of the tiny model; each worker has one thread."""
    return busy_config(
        data_dir,
        models=(ServedModel(name="tiny", source=str(model)),),
        device="cpu",
        num_threads=workers,
        workers=workers,
        is_deterministic=is_deterministic,
    )


def run(
    folder: Path, model: Path, number: int, libraries: tuple[str, ...], workers: int = 1
) -> None:
    """One campaign. Several clients have a server that computes every request alone; a single one
    works on one model at a time, for models that train at once may share passes."""
    dice = random.Random(f"{SEED}/exact/{number}")
    kills = dice.sample(KILLS, 4)
    if workers > 1:
        kills = [*[each for each in kills if "engine." not in each], "one engine", "engine"]
    campaign = Campaign(
        folder,
        SEED + number,
        config=config(folder / "data", model, is_deterministic=len(libraries) > 1, workers=workers),
        libraries=libraries,
        at_least=20,
        has_one_run=len(libraries) == 1,
    )
    outcome = campaign.run(kills)
    if IS_SOAK:
        print(f"\n{outcome}")
    assert outcome.violations == [], f"seed {SEED}, campaign {number}, kills {kills}"


@pytest.mark.parametrize("number", range(8))
def test_a_run_alone_is_exact_with_default_settings(
    tmp_path: Path, tiny: Path, number: int
) -> None:
    run(tmp_path / "campaign", tiny, number, (LIBRARIES[number % len(LIBRARIES)],))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("number", range(4))
def test_runs_side_by_side_are_exact_on_a_deterministic_server(
    tmp_path: Path, tiny: Path, number: int, workers: int
) -> None:
    run(tmp_path / "campaign", tiny, 100 + number, LIBRARIES, workers)
