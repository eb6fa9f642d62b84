"""Sessions: heartbeats, ends, lists, searches, and what ends with them."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.server.driving import MODEL, Http
from tests.support.waiting import wait_until


def finish(http: Http, session: str, reason: str = "success") -> int:
    body = {"reason": {"type": reason}, "detail": None}
    return http.call("POST", f"sessions/{session}/finish", body).status_code


def test_a_finished_session_has_no_heartbeat(http: Http) -> None:
    session = http.session()
    http.post("session_heartbeat", {"session_id": session})
    assert finish(http, session) == 200
    assert finish(http, session, "errored") == 200, "the first reason wins, no error"
    answer = http.call("POST", "session_heartbeat", {"session_id": session})
    assert answer.status_code == 410
    request = {"session_id": session, "model_seq_id": 0, "base_model": MODEL}
    assert http.call("POST", "create_model", request).status_code == 410


def sampler_folder(data_dir: Path, sampling_session_id: str) -> Path:
    """The one folder of this sampler: other tests share the server and write their own."""
    query = "SELECT folder FROM sampling_sessions WHERE sampling_session_id = ?"
    with closing(sqlite3.connect(data_dir / "tinkex.db")) as db:
        (folder,) = db.execute(query, [sampling_session_id]).fetchone()
    return data_dir / "samplers" / str(folder)


def test_ephemeral_samplers_end_with_their_session(http: Http, data_dir: Path) -> None:
    session = http.session()
    model = http.model(session)
    save = {"model_id": model, "seq_id": 1, "sampling_session_seq_id": 0}
    promise = http.post("save_weights_for_sampler", save)
    again = http.post("save_weights_for_sampler", {**save, "sampling_session_seq_id": 1})
    assert again == promise, "sent again it asks for another session and is the same request"
    sampler = http.result(promise["request_id"])["sampling_session_id"]
    assert sampler == f"{session}:sample:0"
    folder = sampler_folder(data_dir, sampler)
    wait_until(folder.exists)  # the weights are written after the answer
    http.result(http.step(model, 2)["request_id"])
    finish(http, session)
    wait_until(lambda: not folder.exists())
    request = {
        "sampling_session_id": sampler,
        "seq_id": 0,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1]}]},
        "sampling_params": {"max_tokens": 1},
    }
    ended = http.result(http.post("asample", request)["request_id"])
    assert ended["category"] == "user"


def open_session(http: Http, **fields: Any) -> str:
    request = {"tags": ["t"], "user_metadata": {}, "sdk_version": "0.36.0", **fields}
    return str(http.post("create_session", request)["session_id"])


def test_sessions_are_found_by_what_they_are(http: Http) -> None:
    name = f"run-{time.time_ns()}"
    first = open_session(http, display_name=name, user_metadata={"k": "v"}, project_id="p")
    second = open_session(http, display_name=name)
    finish(http, second, "errored")

    def found(**query: Any) -> list[str]:
        answer = http.post("sessions/search", {"display_name": name, **query})
        return [each["session_id"] for each in answer["sessions"]]

    assert found() == [second, first]
    assert found(user_metadata={"k": "v"}) == [first]
    assert found(project_ids=["p"]) == [first]
    assert found(statuses=[{"type": "active"}]) == [first]
    assert found(statuses=[{"type": "client_finished", "reasons": ["errored"]}]) == [second]
    assert found(statuses=[{"type": "client_finished", "reasons": ["success"]}]) == []
    page = http.post("sessions/search", {"display_name": name, "limit": 1})
    assert found(limit=1, cursor=page["next_cursor"]) == [first]
    assert http.get(f"sessions/{first}")["display_name"] == name
    http.call("PUT", f"sessions/{second}/project", {"project_id": "p"})
    assert found(project_ids=["p"]) == [second, first]
