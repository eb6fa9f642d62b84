"""The log as JSON lines, and what no form of the log may hold: keys and prompts."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.driving import MODEL, Http
from tests.server.test_serve_log import KEY, Serving, serving
from tinkex.server.upkeep.log_setup import _JsonLines

PROMPT = [231, 232, 233]
OUTSIDE = 171_717
"""A token that no model has: the error names it to the client, and to no log."""


def scenario(server: Serving) -> None:
    """Trains, samples and errs, with tokens that nothing else has."""
    with httpx.Client(base_url=server.url, timeout=60) as client:
        http = Http(client, KEY)
        session = http.session()
        model = http.model(session)
        http.result(http.train(model, 1).json()["request_id"])
        http.result(http.step(model, 2)["request_id"])
        payload = {"session_id": session, "sampling_session_seq_id": 0, "base_model": MODEL}
        sampling = http.post("create_sampling_session", payload)["sampling_session_id"]
        payload = {"sampling_session_id": sampling, "num_samples": 1}
        params = {"sampling_params": {"max_tokens": 4}}
        for number, tokens in enumerate((PROMPT, [OUTSIDE])):
            prompt = {"chunks": [{"type": "encoded_text", "tokens": tokens}]}
            request = {**payload, **params, "seq_id": number, "prompt": prompt}
            http.result_or_error(http.post("asample", request)["request_id"])
        wrong = {**request, "seq_id": 2, "sampling_params": {"max_tokens": -4}}
        http.call("POST", "asample", wrong)
        http.call("GET", f"training_runs/{KEY}")
        http.call("POST", "forward_backward", {"model_id": KEY, "seq_id": "x"})


def lines_of(server: Serving) -> list[dict[str, Any]]:
    """The log's lines; the greeting is on stdout."""
    return [json.loads(line) for line in server.log().splitlines()]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_log_holds_a_key_or_a_prompt(tmp_path: Path, log_format: str) -> None:
    with serving(tmp_path, "-vv", "--log-format", log_format) as server:
        scenario(server)
        assert server.stop() == 0
    log = server.log()
    assert "/api/v1/asample" in log
    assert KEY not in log
    assert KEY[4:30] not in log
    assert str(OUTSIDE) not in log
    for between in (", ", ",", " "):
        assert between.join(map(str, PROMPT)) not in log


def test_every_line_is_an_object_with_the_fields_of_its_request(tmp_path: Path) -> None:
    with serving(tmp_path, "-v", "--log-format", "json") as server:
        scenario(server)
        assert server.stop() == 0
    lines = lines_of(server)
    for line in lines:
        assert {"time", "level", "logger", "message"} <= line.keys()
        assert line["time"].endswith("Z")
    messages = [line["message"] for line in lines]
    assert any(each.startswith("Data folder: ") for each in messages)
    assert any(each.startswith("Draining: ") for each in messages)
    (sample, _, refused) = [each for each in lines if each.get("path") == "/api/v1/asample"]
    assert (sample["method"], sample["status"]) == ("POST", 200)
    assert refused["status"] == 422
    assert sample["bytes_in"] > 0
    assert sample["took_ms"] >= 0
    assert sample["caller"].count("/") == 1


def test_an_exception_is_one_field_and_keys_in_it_are_masked() -> None:
    try:
        raise ValueError(f"wrong: {KEY}\nand more")
    except ValueError:
        record = logging.LogRecord(
            "x", logging.ERROR, "", 0, "It failed: %s", (KEY,), sys.exc_info()
        )
    text = _JsonLines().format(record)
    line = json.loads(text)
    assert "\n" not in text
    assert "ValueError: wrong: tml-…6789" in line["error"]
    assert KEY not in text
