"""Runs that are over for a real server go on from their newest checkpoint, number for number."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

import tinkex
from tests.support.waiting import wait_until
from tinkex import telemetry, types
from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.errors import GoneError
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer

DATUM = types.Datum(
    types.ModelInput.from_ints([5, 9, 17, 3, 40]),
    {"target_tokens": [9, 17, 3, 40, 8], "weights": [0.0, 1.0, 0.5, 2.0, 1.0]},
)
QUICK = {"base_s": 0.01, "max_s": 0.01, "poll_s": None}
Seen = list[tuple[str, dict[str, Any], dict[str, Any]]]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recovery")


@pytest.fixture(scope="module")
def server(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    folder = make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "smollm")
    config = ServerConfig(
        data_dir=data_dir,
        port=0,
        models=(ServedModel(name="tiny", source=str(folder)),),
        num_threads=1,
        session_life_s=0.5,
        trim_every_s=0.1,
    )
    with EmbeddedServer(config) as running:
        yield running


@pytest.fixture
def service(server: EmbeddedServer) -> Iterator[tinkex.ServiceClient]:
    with tinkex.ServiceClient(base_url=server.base_url, api_key=server.api_key) as client:
        yield client


@pytest.fixture
def seen() -> Iterator[Seen]:
    """The events of recoveries, in order."""
    found: Seen = []
    telemetry.attach(
        "test-recovery",
        "tinkex.recovery.*",
        lambda event, measured, about, _: found.append((event, measured, about)),
    )
    yield found
    telemetry.detach("test-recovery")


def step(training: tinkex.TrainingClient) -> None:
    training.forward_backward([DATUM], "cross_entropy").result()
    training.optim_step(types.AdamParams(learning_rate=0.01)).result()


def logprobs(training: tinkex.TrainingClient) -> list[float]:
    scored = training.forward([DATUM], "cross_entropy").result()
    return [float(each) for each in scored.loss_fn_outputs[0]["logprobs"].to_torch()]


def call(server: EmbeddedServer, method: str, path: str, body: Any = None) -> Any:
    answer = httpx.request(
        method,
        f"{server.base_url}/api/v1/{path}",
        json=body,
        headers={"X-API-Key": server.api_key},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def end_session(server: EmbeddedServer, run_id: str, _data_dir: Path) -> None:
    """The client's session ends, and what it held is dropped some time later."""
    session_id = run_id.partition(":")[0]
    reason = {"reason": {"type": "success"}, "detail": None}
    call(server, "POST", f"sessions/{session_id}/finish", reason)
    wait_until(lambda: call(server, "GET", f"training_runs/{run_id}")["ended"])


def unload(server: EmbeddedServer, run_id: str, _data_dir: Path) -> None:
    call(server, "POST", "unload_model", {"model_id": run_id})


def corrupt(_server: EmbeddedServer, run_id: str, data_dir: Path) -> None:
    """The run's state in the store becomes that of one whose making failed."""
    with closing(sqlite3.connect(data_dir / "tinkex.db", timeout=60)) as db, db:
        db.execute("UPDATE models SET state = 'failed' WHERE model_id = ?", [run_id])


Removal = Callable[[EmbeddedServer, str, Path], None]


@pytest.mark.parametrize(
    ("remove", "reason"), [(end_session, "ended"), (unload, "ended"), (corrupt, "corrupted")]
)
def test_a_run_goes_on_from_its_newest_checkpoint(
    server: EmbeddedServer,
    service: tinkex.ServiceClient,
    data_dir: Path,
    seen: Seen,
    remove: Removal,
    reason: str,
) -> None:
    training = service.create_lora_training_client("tiny", rank=4, seed=1)
    step(training)
    training.save_state("step-1").result()
    step(training)
    newest = training.save_state("step-2", user_metadata={"step": "2"}).result().path
    step(training)
    wanted = logprobs(training)

    with tinkex.RecoveryMonitor(service, tinkex.RecoveryPolicy(**QUICK)) as monitor:
        run = monitor.watch(training)
        remove(server, training.model_id, data_dir)
        recovered = run.recover()
        assert run.client is recovered.client is not training
        assert run.last_recovery is recovered
    assert recovered.run_id == training.model_id
    assert recovered.reason == reason
    assert recovered.checkpoint.tinker_path == newest
    assert recovered.checkpoint.user_metadata == {"step": "2"}
    step(run.client)  # with the optimizer's moments, or the numbers would differ
    assert logprobs(run.client) == wanted

    about = {"run_id": training.model_id, "checkpoint": None, "error": None}
    names = ("detected", "started", "checkpoint_selected", "client_created", "completed")
    assert [event for event, _, _ in seen] == [f"tinkex.recovery.{name}" for name in names]
    assert [measured["attempt"] for _, measured, _ in seen] == [0, 1, 1, 1, 1]
    assert seen[0][2] == {**about, "error": reason}
    assert seen[1][2] == about
    assert all(each[2] == {**about, "checkpoint": newest} for each in seen[2:])


def test_the_error_of_an_ended_run_leads_to_its_recovery(
    server: EmbeddedServer, service: tinkex.ServiceClient, data_dir: Path
) -> None:
    training = service.create_lora_training_client("tiny", rank=4, seed=1)
    training.save_state("start").result()
    with tinkex.RecoveryMonitor(service, tinkex.RecoveryPolicy(**QUICK)) as monitor:
        run = monitor.watch(training)
        end_session(server, training.model_id, data_dir)
        with pytest.raises(GoneError) as failed:
            step(run.client)
        recovered = run.recover(failed.value)
        step(recovered.client)


def test_the_monitor_recovers_by_itself(
    server: EmbeddedServer, service: tinkex.ServiceClient, data_dir: Path
) -> None:
    reported: list[Any] = []
    policy = tinkex.RecoveryPolicy(
        poll_s=0.05,
        on_detected=lambda run_id, reason: reported.append((run_id, reason)),
        on_recovered=reported.append,
    )
    training = service.create_lora_training_client("tiny", rank=4, seed=1)
    training.save_state("start").result()
    with tinkex.RecoveryMonitor(service, policy) as monitor:
        run = monitor.watch(training)
        unload(server, training.model_id, data_dir)
        wait_until(lambda: len(reported) == 2)
        recovered = run.recover(ValueError("an error of the work with the lost run"))
    assert reported == [(training.model_id, "ended"), recovered]
    step(recovered.client)


def test_a_run_that_is_well_is_left_alone(service: tinkex.ServiceClient, seen: Seen) -> None:
    training = service.create_lora_training_client("tiny", rank=4, seed=1)
    with tinkex.RecoveryMonitor(service, tinkex.RecoveryPolicy(**QUICK)) as monitor:
        run = monitor.watch(training)
        mistake = ValueError("a mistake of the caller's own")
        with pytest.raises(ValueError, match="mistake"):
            run.recover(mistake)
        with pytest.raises(tinkex.RecoveryFailedError, match="not lost"):
            run.recover()
    assert run.client is training
    assert seen == []
    step(training)


def test_a_restart_goes_back_to_a_chosen_checkpoint(service: tinkex.ServiceClient) -> None:
    training = service.create_lora_training_client("tiny", rank=4, seed=1)
    first = training.save_state("first").result().path
    start = logprobs(training)
    step(training)
    training.save_state("second").result()
    policy = tinkex.RecoveryPolicy(
        checkpoint=lambda saved: saved[-1], with_optimizer=False, **QUICK
    )
    with tinkex.RecoveryMonitor(service, policy) as monitor:
        recovered = monitor.watch(training).restart()
    assert recovered.checkpoint.tinker_path == first
    assert logprobs(recovered.client) == start


def test_a_damaged_checkpoint_is_passed_over(
    server: EmbeddedServer, service: tinkex.ServiceClient, data_dir: Path, seen: Seen
) -> None:
    training = service.create_lora_training_client("tiny", rank=4, seed=1)
    older = training.save_state("older").result().path
    newer = training.save_state("newer").result().path
    damage(data_dir, training.model_id, "newer")
    unload(server, training.model_id, data_dir)
    with tinkex.RecoveryMonitor(service, tinkex.RecoveryPolicy(**QUICK)) as monitor:
        recovered = monitor.watch(training).recover()
    assert recovered.checkpoint.tinker_path == older
    assert recovered.attempts == 2
    failed = [each for each in seen if each[0] == "tinkex.recovery.failed"]
    assert [measured["attempt"] for _, measured, _ in failed] == [1]
    selected = [each[2]["checkpoint"] for each in seen if each[0].endswith("selected")]
    assert selected == [newer, older]
    step(recovered.client)


def damage(data_dir: Path, run_id: str, name: str) -> None:
    """Changes a byte of every tensor file of a checkpoint."""
    query = "SELECT checkpoint_id FROM checkpoints WHERE model_id = ? AND name = ?"
    with closing(sqlite3.connect(data_dir / "tinkex.db", timeout=60)) as db:
        (checkpoint_id,) = db.execute(query, [run_id, name]).fetchone()
    files = list((data_dir / "checkpoints" / checkpoint_id).rglob("*.safetensors"))
    assert files
    for path in files:
        body = bytearray(path.read_bytes())
        body[-1] ^= 0xFF
        path.chmod(0o600)
        path.write_bytes(body)


def test_without_a_checkpoint_there_is_nothing_to_go_on_from(
    server: EmbeddedServer, service: tinkex.ServiceClient, data_dir: Path, seen: Seen
) -> None:
    training = service.create_lora_training_client("tiny", rank=4, seed=1)
    unload(server, training.model_id, data_dir)
    reported: list[Any] = []
    policy = tinkex.RecoveryPolicy(on_exhausted=lambda *given: reported.append(given), **QUICK)
    with tinkex.RecoveryMonitor(service, policy) as monitor:
        run = monitor.watch(training)
        with pytest.raises(tinkex.RecoveryFailedError, match="no checkpoint") as failed:
            run.recover()
    assert reported == [(training.model_id, failed.value)]
    names = [event.rpartition(".")[2] for event, _, _ in seen]
    assert names == ["detected", "started", "failed", "exhausted"]
    assert "no checkpoint" in seen[-1][2]["error"]
