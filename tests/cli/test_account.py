"""`tinkex billing`, `tinkex session`, and lists as CSV or with chosen columns."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import Shell
from tests.support.loopback import LoopbackServer

HOUR = {"bucket_start": "2026-07-13T00:00:00Z", "bucket_end": "2026-07-13T01:00:00Z"}
USAGE: dict[str, Any] = {
    "data": [
        {**HOUR, "base_model": "m", "event_info": {"type": "training", "token_count": 1200}},
        {
            **HOUR,
            "session_id": "s-1",
            "estimated_cost_usd": 0.25,
            "event_info": {"type": "sampling_prefill", "cached": True, "token_count": 7},
        },
        {**HOUR, "event_info": {"type": "storage", "gigabyte_hours": 1.5}},
        {**HOUR, "event_info": {"type": "checkpoint", "count": 2}},
    ],
    "sessions": {"s-1": {"user_metadata": {"note": "a, b"}}},
    "cost_data_through": None,
}
SPAN = ("2026-07-13T00:00:00Z", "2026-07-14T00:00:00Z")


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture
def used(server: LoopbackServer) -> None:
    server.on("billing_usage").reply(200, json_body=USAGE).always()


@pytest.fixture
def runs(shell: Shell, model: str) -> list[str]:
    """Two runs with a checkpoint each, in the order in which the loopback server lists them."""
    paths = [shell("checkpoint", "--base-model", model).stdout.strip() for _ in range(2)]
    return [path.split("/")[2] for path in paths]


@pytest.mark.usefixtures("used")
def test_usage_is_a_table_or_json(shell: Shell, server: LoopbackServer) -> None:
    ran = shell("billing", "usage", *SPAN)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0].split() == [
        "HOUR",
        "TYPE",
        "QUANTITY",
        "UNIT",
        "MODEL",
        "SESSION",
        "COST",
        "USD",
    ]
    assert lines[1].split() == ["2026-07-13", "00:00", "training", "1200", "tokens", "m", "-", "-"]
    assert server.calls("billing_usage")[0].query == {
        "starting_on": SPAN[0],
        "ending_before": SPAN[1],
    }
    document = json.loads(shell("billing", "usage", *SPAN, "--json").stdout)
    assert [each["event_info"]["type"] for each in document["data"]] == [
        "training",
        "sampling_prefill",
        "storage",
        "checkpoint",
    ]


@pytest.mark.usefixtures("used")
def test_usage_as_csv_has_every_column_and_the_sessions_apart(shell: Shell) -> None:
    ran = shell("billing", "usage", *SPAN, "--csv", "-", "--sessions-csv", "sessions.csv")
    assert ran.returncode == 0, ran.stderr
    found = rows(ran.stdout)
    assert [(each["quantity"], each["unit"]) for each in found] == [
        ("1200", "tokens"),
        ("7", "tokens"),
        ("1.5", "GB-hours"),
        ("2", "checkpoints"),
    ]
    assert (found[1]["cached"], found[1]["cost_usd"], found[0]["cost_usd"]) == ("True", "0.25", "")
    assert found[0]["start"] == "2026-07-13T00:00:00+00:00"
    sessions = rows((shell.folder / "sessions.csv").read_text())
    assert json.loads(sessions[0]["user_metadata"]) == {"note": "a, b"}


def test_nothing_used_is_said_and_as_csv_a_line_of_names(shell: Shell) -> None:
    ran = shell("billing", "usage", *SPAN)
    assert (ran.returncode, ran.stdout) == (0, "")
    assert "Nothing was used" in ran.stderr
    ran = shell("billing", "usage", *SPAN, "--csv", "-", "--columns", "type,unit")
    assert ran.stdout == "type,unit\n"


def test_checkpoint_storage(shell: Shell, server: LoopbackServer) -> None:
    item = {"checkpoint_count": 3, "size_bytes": 1_234_567, "size_gigabytes": 0.001234567}
    answer = {"data": [{**item, "org_user_urn": "tml:user:1"}]}
    server.on("checkpoint_storage").reply(200, json_body=answer).always()
    ran = shell("billing", "checkpoint-storage", "--project-id", "p")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[1].split() == ["-", "tml:user:1", "3", "1.2", "MB", "-"]
    assert server.calls("checkpoint_storage")[0].query == {"project_id": "p"}
    ran = shell("billing", "checkpoint-storage", "--csv", "-", "-c", "size_bytes, checkpoints")
    assert ran.stdout == "size_bytes,checkpoints\n1234567,3\n"


def test_a_real_server_reports_storage_and_has_no_billing(
    live: dict[str, str], tmp_path: Path
) -> None:
    shell = Shell(tmp_path, live)
    assert shell("checkpoint", "--base-model", "tiny").returncode == 0
    document = json.loads(shell("billing", "checkpoint-storage", "--json").stdout)
    assert sum(each["checkpoint_count"] for each in document["data"]) >= 1
    ran = shell("billing", "usage", *SPAN)
    assert ran.returncode != 0
    assert "no billing" in ran.stderr
    ran = shell("session", "export-trace", "nope")
    assert ran.returncode == 4, ran.stderr


def test_metadata_and_list_of_a_real_server_say_when_a_checkpoint_was_saved(
    live: dict[str, str], tmp_path: Path
) -> None:
    shell = Shell(tmp_path, live)
    began = datetime.now(UTC).replace(microsecond=0)
    ran = shell("checkpoint", "--base-model", "tiny", "--output", "meta.json")
    assert ran.returncode == 0, ran.stderr
    ended = datetime.now(UTC)
    metadata = json.loads((tmp_path / "meta.json").read_text())
    written = datetime.fromisoformat(metadata["timestamp"])
    assert written.utcoffset() == timedelta(0)
    assert began <= written <= ended
    listed = rows(shell("checkpoint", "list", "--csv", "-").stdout)
    saved = next(row for row in listed if row["path"] == metadata["path"])
    assert began <= datetime.fromisoformat(saved["made"]) <= ended
    chosen = shell("checkpoint", "list", "--columns", "made,path", "--csv", "-").stdout
    assert f"{saved['made']},{metadata['path']}" in chosen.splitlines()


def test_a_trace_is_downloaded_or_its_address_printed(shell: Shell, server: LoopbackServer) -> None:
    trace = {"status": "ready", "url": f"{server.url}/api/v1/healthz", "error": None}
    server.on("trace_export").reply(200, json_body=trace).always()
    ran = shell("session", "export-trace", "s-1", "--url-only")
    assert ran.stdout.strip() == trace["url"]
    ran = shell("session", "export-trace", "s-1", "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["session_id"] == "s-1"
    assert json.loads((shell.folder / "s-1.pftrace").read_text())["status"] == "ok"
    shell("session", "export-trace", "s-1", "--output", "deeper/mine.pftrace")
    assert (shell.folder / "deeper/mine.pftrace").stat().st_size > 0


def test_a_trace_that_breaks_off_leaves_no_file(shell: Shell, server: LoopbackServer) -> None:
    trace = {"status": "ready", "url": "http://127.0.0.1:1/trace", "error": None}
    server.on("trace_export").reply(200, json_body=trace).always()
    ran = shell("session", "export-trace", "s-1")
    assert ran.returncode == 7, ran.stderr
    assert not list(shell.folder.glob("*.pftrace*")) + list(shell.folder.glob(".*.part"))


def test_lists_have_the_columns_that_are_named(shell: Shell, runs: list[str]) -> None:
    ran = shell("run", "list", "--columns", "status, id")
    assert [line.split() for line in ran.stdout.splitlines()] == [
        ["STATUS", "RUN"],
        *(["ok", run] for run in runs),
    ]
    found = rows(shell("run", "list", "--csv", "-").stdout)
    assert [each["id"] for each in found] == runs
    assert found[0]["lora"] == "32"
    ran = shell("checkpoint", "list", "--csv", "saved.csv", "-c", "path,size")
    assert (ran.returncode, ran.stdout) == (0, "")
    saved = rows((shell.folder / "saved.csv").read_text())
    assert all(each["path"].startswith("tinker://") and int(each["size"]) > 0 for each in saved)
    assert len(saved) == len(runs)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--columns", "id,colour"], "no column 'colour'; there are: id, name, model"),
        (["--csv", "-", "--json"], "do not go with --json"),
        (["--columns", "id", "-q"], "do not go with --json or --quiet"),
    ],
)
def test_wrong_columns_are_refused(shell: Shell, arguments: list[str], message: str) -> None:
    ran = shell("run", "list", *arguments)
    assert ran.returncode == 2
    assert message in ran.stderr
