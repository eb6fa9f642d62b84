"""kill -9 at every named point and at random moments, under both clients and plain HTTP.

Each campaign kills a server and its engine many times while clients train, sample, save, load and
delete; afterwards what the clients saw is checked against a reference, and the data folder is
looked through. A short share runs with the other tests; `make soak` passes every point.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from tests.faults.campaign import OF_WORKERS, PINGS, RANDOM, Campaign, busy_config
from tests.support.soak import IS_SOAK, SEED, amount
from tinkex import crashpoints

OPERATIONS = (
    "forward_backward",
    "optim_step",
    "create_model",
    "load_weights",
    "save_weights",
    "save_sampler",
    "save_weights_for_sampler",
)
ENGINE_CALLS = (
    "forward_backward",
    "optim_step",
    "create_adapter",
    "save_adapter",
    "start_saving",
    "load_adapter",
    "unload_adapter",
    "snapshot",
    "load_sampler",
    "submit_samples",
    "step_sampling",
)
MARKS: dict[str, tuple[str, ...]] = {
    "submit.before": (*OPERATIONS, "sample"),
    "submit.kept": (*OPERATIONS, "sample"),
    "submit.scheduled": (*OPERATIONS, "sample"),
    "execute.before": OPERATIONS,
    "execute.after": OPERATIONS,
    "result.kept": (*OPERATIONS, "sample"),
    "result.published": OPERATIONS,
    "engine.call.before": ENGINE_CALLS,
    "engine.call.after": ENGINE_CALLS,
    "engine.folder.begun": ("checkpoints", "snapshots", "samplers"),
    "engine.folder.synced": ("checkpoints", "snapshots", "samplers"),
    "engine.folder.renamed": ("checkpoints", "snapshots", "samplers"),
}
AT_ONCE = 3  # points of one campaign; as many kills at random moments are mixed in


def all_points() -> list[str]:
    """Every point with every mark; of the engine's, also with the server going down with it."""
    found = []
    for point in crashpoints.POINTS:
        if point.startswith("depot."):
            continue  # passed only by a server that has one: see test_kills_depot.py
        if point.startswith("replay."):
            # Only a death with something to replay leads there; the engine's is such a one.
            found.append(f"engine.call.after=optim_step:3,{point}")
            continue
        for mark in MARKS.get(point, ("",)):
            text = f"{point}={mark}" if mark else point
            found.append(text)
            if point.startswith("engine.folder") or point == "engine.batch.middle":
                found.append(f"{text}!")
    # An engine that dies, and the one after it while it loads.
    found.append("engine.call.before=optim_step,engine.start.before@2")
    found.append("engine.call.after=step_sampling,engine.start.after@2")
    return found


def plan(number: int, workers: int = 1) -> list[str]:
    """The kills of a campaign, in order."""
    points = all_points()
    random.Random(SEED).shuffle(points)
    dice = random.Random(f"{SEED}/{number}")
    at_once = amount(3 if workers == 1 else 2, AT_ONCE)
    moments: tuple[str, ...] = RANDOM
    if workers > 1:
        points = [_of_any(each, workers, dice) for each in points]
        moments = OF_WORKERS
    mine = [_counted(each, dice) for each in points[number * at_once :][:at_once]]
    kills = mine + [dice.choice(moments) for _ in range(amount(2, AT_ONCE))]
    if workers > 1:
        kills += ["one engine", "frozen engine"]
    dice.shuffle(kills)
    return kills


def _of_any(points: str, workers: int, dice: random.Random) -> str:
    """The same points, those in engines in any of several; the next that starts is in place of the
    first that died."""
    engine, found = dice.randint(1, workers), []
    for each in points.split(","):
        name, is_both = each.removesuffix("!"), each.endswith("!")
        if name.endswith("@2"):
            name = f"{name[:-1]}{workers + 1}"
        elif name.startswith("engine."):
            name += f"@{engine}"
        found.append(f"{name}{'!' if is_both else ''}")
    return ",".join(found)


def _counted(point: str, dice: random.Random) -> str:
    """The point at its first or a later passing; what is passed often, much later."""
    if "," in point or "start." in point:
        return point  # once in the life of a process
    name, is_both = point.removesuffix("!"), point.endswith("!")
    name, at, engine = name.partition("@")
    most = 30 if name.startswith("store.") else 3 if name.startswith("engine.call") else 2
    return f"{name}:{dice.randint(1, most)}{at}{engine}{'!' if is_both else ''}"


CAMPAIGNS = -(-len(all_points()) // AT_ONCE)
CASES = [
    *((1, number) for number in range(amount(1, CAMPAIGNS))),
    *((2, number) for number in range(amount(1, CAMPAIGNS))),
]


@pytest.mark.soak
@pytest.mark.parametrize(("workers", "number"), CASES)
def test_kills_lose_double_and_delay_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], workers: int, number: int
) -> None:
    kills = plan(number, workers)
    folder = tmp_path / "campaign"
    several = {"workers": workers, **PINGS} if workers > 1 else {}
    config = busy_config(folder / "data", **several)
    outcome = Campaign(folder, SEED + number, config=config).run(kills)
    if IS_SOAK:
        with capsys.disabled():
            print(f"\n{outcome}")
    assert outcome.violations == [], f"seed {SEED}, campaign {number}, kills {kills}"
    assert outcome.unreached == []
    assert len(outcome.deaths) >= len(kills)


@pytest.mark.soak
@pytest.mark.skipif(not IS_SOAK, reason="the campaign above kills engines too")
@pytest.mark.parametrize("number", range(3))
def test_an_engine_killed_again_and_again_fails_no_request(tmp_path: Path, number: int) -> None:
    """The server stays up all the while."""
    outcome = Campaign(tmp_path / "campaign", SEED + 1000 + number).run(["engine"] * 12)
    assert outcome.violations == []
    assert len(outcome.ready_s) == 1, "the server was never restarted"


def test_every_crash_point_occurs_in_the_soak() -> None:
    single = [each for text in all_points() for each in text.split(",")]
    planned = {re.split("[=:@!]", each)[0] for each in single}
    assert planned == {each for each in crashpoints.POINTS if not each.startswith("depot.")}
    assert CAMPAIGNS * 2 * AT_ONCE >= 200
