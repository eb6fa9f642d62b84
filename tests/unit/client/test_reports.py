"""Reports to the server: in the protocol's shape, without secrets, and only where asked for."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.clock import FakeClock
from tests.support.data import CROSS_ENTROPY, make_data
from tests.support.fixtures import Connect
from tests.support.loopback import LoopbackServer
from tinkex import telemetry
from tinkex.client.reporter import MAX_BATCH, REPORTED
from tinkex.telemetry import events

MODEL = "tiny/model"
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def reported(server: LoopbackServer) -> list[dict[str, Any]]:
    return [event for batch in server.service.telemetry for event in batch["events"]]


def test_events_arrive_in_the_protocols_shape(server: LoopbackServer, connect: Connect) -> None:
    with connect(telemetry_to_server=True) as service:
        training = service.create_lora_training_client(base_model=MODEL)
        server.on("retrieve_future").not_ready("paused_capacity", "full")
        training.forward_backward(make_data([2]), CROSS_ENTROPY).result(10)
    (session_id,) = server.service.world.sessions
    for batch in server.service.telemetry:
        assert set(batch) == {"events", "platform", "sdk_version", "session_id", "process_uuid"}
        assert batch["session_id"] == session_id
        assert UUID.fullmatch(batch["process_uuid"])
    found = reported(server)
    assert [event["event"] for event in found][:: len(found) - 1] == [
        "SESSION_START",
        "SESSION_END",
    ]
    assert [event["event_session_index"] for event in found] == list(range(len(found)))
    assert len({event["event_id"] for event in found}) == len(found)
    for event in found:
        assert UUID.fullmatch(event["event_id"])
        assert event["severity"] in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
        assert event["timestamp"].endswith(("Z", "+00:00"))
    assert re.fullmatch(r"\d+:\d\d:\d\d(\.\d+)?", found[-1]["duration"])
    queue = [event for event in found if event.get("event_name") == events.QUEUE_STATE_CHANGE]
    assert queue[0]["event_data"]["queue_state"] == "paused_capacity"


def test_nothing_is_sent_unless_enabled(server: LoopbackServer, connect: Connect) -> None:
    with connect() as service:
        service.create_lora_training_client(base_model=MODEL)
    assert server.count("telemetry") == 0


def test_no_secret_is_reported(server: LoopbackServer, connect: Connect) -> None:
    key = "tml-0123456789abcdef0123"
    with connect(telemetry_to_server=True, api_key=key) as service:
        session = service.create_lora_training_client(base_model=MODEL)._session.session_id
        telemetry.execute(
            events.SESSION_HEARTBEAT_FAILED,
            {"failing_for": 1.0},
            {"session_id": session, "error": f"refused {key}", "api_key": key},
        )
    assert key not in str(server.service.telemetry)
    assert "refused" in str(server.service.telemetry)


def test_other_sessions_events_are_not_ours(server: LoopbackServer, connect: Connect) -> None:
    with connect(telemetry_to_server=True) as service:
        service.create_lora_training_client(base_model=MODEL)
        metadata = {"session_id": "another", "error": "theirs"}
        telemetry.execute(events.SESSION_HEARTBEAT_FAILED, {"failing_for": 1.0}, metadata)
    assert "theirs" not in str(server.service.telemetry)


def test_reports_are_sent_now_and_then_in_batches(
    server: LoopbackServer, connect: Connect, clock: FakeClock
) -> None:
    with connect(telemetry_to_server=True) as service:
        session = service.create_lora_training_client(base_model=MODEL)._session.session_id
        for _ in range(2 * MAX_BATCH):
            telemetry.execute(
                events.SESSION_HEARTBEAT_FAILED, {"failing_for": 1.0}, {"session_id": session}
            )
    sizes = [len(batch["events"]) for batch in server.service.telemetry]
    assert max(sizes) <= MAX_BATCH
    assert sum(sizes) == 2 * MAX_BATCH + 2


def test_reports_about_reports_are_not_made() -> None:
    assert not [name for name in REPORTED if name.startswith("tinkex.http.")]


def test_a_reporter_that_hangs_does_not_keep_the_session_open(
    server: LoopbackServer, connect: Connect
) -> None:
    """The end of the session is told first; reports come after it."""
    held = server.on("telemetry").hold().always()
    service = connect(telemetry_to_server=True)
    service.create_lora_training_client(base_model=MODEL)
    closing = service.close()
    server.wait_for("finish_session")
    held.release()
    closing.result(10)


def test_a_server_that_takes_no_reports_harms_nothing(
    server: LoopbackServer, connect: Connect
) -> None:
    server.on("telemetry").reply(404).always()
    with connect(telemetry_to_server=True) as service:
        training = service.create_lora_training_client(base_model=MODEL)
        training.forward_backward(make_data([2]), CROSS_ENTROPY).result(10)
    assert server.service.telemetry == []


@pytest.fixture(autouse=True)
def _no_listener_is_left() -> Any:
    yield
    assert not [name for name in REPORTED if telemetry.has_handlers(name)]
