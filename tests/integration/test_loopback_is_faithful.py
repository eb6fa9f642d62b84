"""The loopback server speaks the real protocol: the official client trains and samples on it.

What the official client sends and gets back is the yardstick for our own: the same program, with
only the name of the package changed, must see the same numbers and send the same requests.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.loopback import LoopbackServer
from tests.support.numbers import logprob, sampled_tokens, top_tokens

ROOT = Path(__file__).parents[2]
NUM_DATUMS = 7
CHUNK = 3


Run = tuple[LoopbackServer, dict[str, Any]]


@contextmanager
def _run_of(package: str) -> Iterator[Run]:
    """The server after the whole loop of a package, and what the package saw."""
    flags = {"fwdbwd_max_chunk_len": CHUNK, "custom_loss_server_side": True}
    with LoopbackServer(flags=flags) as server:
        arguments = [package, server.url, str(NUM_DATUMS)]
        command = [sys.executable, "-m", "tests.support.whole_loop", *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr[-3000:]
        yield server, json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """The official client's run."""
    with _run_of("tinker") as made:
        yield made


@pytest.fixture(scope="module")
def our_run() -> Iterator[Run]:
    """The same program's run with our package in place of the official one."""
    with _run_of("tinkex") as made:
        yield made


def _losses() -> list[float]:
    lengths = [3 + number % 5 for number in range(NUM_DATUMS)]
    return [-0.5 * sum(logprob(t) for t in range(1, n + 1)) for n in lengths]


def test_official_client_trains_in_chunks_and_combines_them(run: Run) -> None:
    _, seen = run
    lengths = [3 + number % 5 for number in range(NUM_DATUMS)]
    mean = sum(lengths) / NUM_DATUMS
    assert seen["num_outputs"] == NUM_DATUMS
    assert seen["first_logprobs"] == [logprob(t) for t in (1, 2, 3)]
    assert seen["metrics"]["loss:sum"] == sum(_losses())
    assert seen["metrics"]["tokens:mean"] == pytest.approx(mean)
    assert seen["metrics"]["tokens:max"] == max(lengths)
    assert seen["metrics"]["tokens:min"] == min(lengths)


def test_official_client_sees_the_step_it_made(run: Run) -> None:
    _, seen = run
    assert seen["step_metrics"] == {"gradients": 3.0, "learning_rate": 0.5}
    assert seen["after_step"] == _losses()[0] / 2


def test_official_client_runs_a_custom_loss(run: Run) -> None:
    _, seen = run
    expected = sum((logprob(t) / 2) ** 2 for n in (3, 4) for t in range(1, n + 1))
    assert seen["custom_loss"]["loss:sum"] == pytest.approx(expected)
    assert seen["custom_loss"]["custom/pairs:sum"] == 2.0


def test_official_client_uploads_a_loss_and_trains_with_it(run: Run) -> None:
    server, _ = run
    (created,) = server.calls("create_custom_loss")
    assert [given["name"] for given in created.decoded["inputs"]] == ["logprobs", "weights"]
    batch = server.calls("forward_backward")[-1].decoded
    assert batch.loss_fn == "custom"
    assert batch.loss_fn_config["loss_id"].startswith("loss-")


def test_chunk_one_arrives_last_and_everything_is_applied_once_and_in_order(run: Run) -> None:
    server, _ = run
    arrived = [request.decoded.seq_id for request in server.calls("forward_backward")][:3]
    assert sorted(arrived) == [1, 2, 3]
    assert arrived[-1] == 1
    assert server.applied() == [
        (1, "forward_backward"),
        (2, "forward_backward"),
        (3, "forward_backward"),
        (4, "optim_step"),
        (5, "forward_backward"),
        (6, "save_weights"),
        (7, "save_weights_for_sampler"),
        (8, "forward_backward"),
        (9, "forward_backward"),
        (10, "forward_backward"),
        (11, "save_weights_for_sampler"),
    ]


def test_official_client_saves_under_paths_of_its_run(run: Run) -> None:
    _, seen = run
    assert seen["state_path"] == f"tinker://{seen['model_id']}/weights/state-1"
    assert seen["sampler_path"] == f"tinker://{seen['model_id']}/sampler_weights/sampler-1"
    assert seen["info_rank"] == 8


def test_official_client_samples_and_scores(run: Run) -> None:
    _, seen = run
    tokens = [sampled_tokens([1, 2, 3], 5, index, 4) for index in range(2)]
    assert seen["tokens"] == tokens
    assert seen["logprobs"] == [[logprob(t) for t in row] for row in tokens]
    assert seen["prompt_logprobs"] == [None, logprob(2), logprob(3)]
    assert seen["topk_prompt"] == [[list(pair) for pair in top_tokens(t, 2)] for t in (1, 2, 3)]


def test_snapshots_keep_the_step_they_were_taken_at(run: Run) -> None:
    _, seen = run
    after_one_step = [None, logprob(2, 1), logprob(3, 1)]
    assert seen["named_logprobs"] == after_one_step
    assert seen["ephemeral_logprobs"] == after_one_step


def test_no_request_of_the_official_client_was_unknown(run: Run) -> None:
    server, seen = run
    assert server.count("unknown") == 0
    assert server.count("finish_session") == 1
    assert seen["models"] == ["tiny/model"]
    assert server.service.telemetry, "the official client reports to the server by default"


def test_our_client_sees_what_the_official_one_sees(run: Run, our_run: Run) -> None:
    assert our_run[1] == run[1]


def test_our_client_has_the_same_done_as_the_official_one(run: Run, our_run: Run) -> None:
    assert our_run[0].history() == run[0].history()


WORK = (
    "client_config",
    "dynamic_config",
    "create_session",
    "create_model",
    "create_custom_loss",
    "optim_step",
    "save_weights",
    "save_weights_for_sampler",
    "create_sampling_session",
    "asample",
    "get_info",
    "finish_session",
)


@pytest.mark.parametrize("route", WORK)
def test_our_requests_are_the_official_ones_byte_for_byte(
    run: Run, our_run: Run, route: str
) -> None:
    official, ours = ({request.body for request in made[0].calls(route)} for made in (run, our_run))
    assert official
    assert ours == official


def test_our_training_batches_are_the_official_ones(run: Run, our_run: Run) -> None:
    official, ours = (
        {request.decoded.seq_id: request.decoded for request in made[0].calls("forward_backward")}
        for made in (run, our_run)
    )
    assert len(official) == 7
    assert ours == official


def test_our_client_reports_nothing_and_polls_no_more_often(run: Run, our_run: Run) -> None:
    official, ours = run[0].counts(), our_run[0].counts()
    assert "telemetry" not in ours
    by_time = {"session_heartbeat"}  # how many there are depends on how long the run took
    assert all(ours[route] <= official[route] for route in ours.keys() - by_time)
