"""The status screen: what it shows, and that it never is wider than the terminal."""

from datetime import UTC, datetime

import msgspec

from tinkex.cli.status_screen import run_lines, status_lines, worker_lines
from tinkex.types.checkpoint import TrainingRun, TrainingRunUsage

WORKER = {
    "name": "worker-0",
    "state": "ready",
    "doing": "training",
    "busy_share": 0.5,
    "num_models": 2,
    "num_adapters": 2,
    "num_samples": 3,
}
STATUS = {
    "version": "1.2.3",
    "uptime_s": 3723.0,
    "state": "ready",
    "models": ["tiny", "large"],
    "engine": {
        "busy_share": 0.25,
        "doing": "training",
        "num_workers": 2,
        "num_adapters": 1,
        "num_samplers": 0,
    },
    "workers": [WORKER, {**WORKER, "name": "worker-1", "state": "draining"}],
    "queue": {
        "training": {"operations": 3, "models": 1, "running_operations": 1, "oldest_s": 75.0},
        "sampling": {
            "requests": 0,
            "running_requests": 2,
            "running_sequences": 8,
            "oldest_s": 0.2,
        },
        "tenants": [{"owner": "al\x1bice", "training": 3, "sampling": 0, "running": 2}],
    },
    "tokens_per_s": {"trained": 12345, "scored": 0, "sampled": 7},
    "memory": {"server_bytes": 10**8, "engine_bytes": 2 * 10**9, "machine_bytes": None},
    "disk": {"free_bytes": 10**9, "total_bytes": 10**10},
}


def test_the_screen_of_an_operator():
    text = "\n".join(status_lines(STATUS, "http://x:1", 100))
    for part in (
        "Tinkex 1.2.3 at http://x:1: ready, up 1:02:03",
        "training, 25% busy over 2 workers; 1 adapter and 0 samplers loaded",
        "3 operations of 1 run waiting, 1 running, oldest for 1:15",
        "2 running (8 sequences)\n",
        "al\\x1bice: 3 operations and 0 samples waiting, 2 running",
        "12,345 trained, 0 scored, 7 sampled tokens/s",
        "server 100.0 MB, engines 2.0 GB\n",
        "1.0 GB of 10.0 GB free\n",
        "worker-1  draining  training  50%",
    ):
        assert part in text, part


def test_no_line_is_wider_than_the_terminal():
    assert max(map(len, status_lines(STATUS, "http://" + "x" * 200, 40))) == 40


def test_a_server_may_have_no_workers_and_a_user_no_runs():
    assert worker_lines([]) == ["There are no workers now."]
    assert run_lines([]) == []


def test_runs_show_what_they_used_if_the_server_says():
    run = TrainingRun(
        training_run_id="r-1",
        base_model="tiny",
        model_owner="o",
        is_lora=True,
        last_request_time=datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
        usage=TrainingRunUsage(tokens=1234, optimizer_steps=5),
    )
    other = TrainingRun(
        training_run_id="r-2",
        base_model="tiny",
        model_owner="o",
        is_lora=True,
        last_request_time=run.last_request_time,
    )
    _, header, first, second = run_lines([run, other])
    assert header.split()[:4] == ["run", "model", "steps", "tokens"]
    assert first.split() == ["r-1", "tiny", "5", "1,234", "2026-01-02", "03:04"]
    assert second.split()[2:4] == ["-", "-"]


def test_runs_are_shown_by_name_with_their_ids_behind():
    bare = TrainingRun(
        training_run_id="r-1",
        base_model="tiny",
        model_owner="o",
        is_lora=True,
        last_request_time=datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
    )
    named = msgspec.structs.replace(bare, training_run_id="r-2", name="n" * 40 + "\x1b[2J")
    _, header, first, second = run_lines([named, bare])
    assert header.split()[-1] == "id"
    assert first.split()[0] == "n" * 23 + "…"
    assert first.split()[-1] == "r-2"
    assert second.split()[0] == "r-1"
    assert second.split()[-1] == "03:04"
