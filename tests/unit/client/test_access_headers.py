"""Cloudflare Access: its headers are sent with every request, and nothing shows the secret."""

from __future__ import annotations

import logging

import pytest

from tests.support.data import CROSS_ENTROPY, make_data
from tests.support.loopback import LoopbackServer
from tinkex import Config, ServiceClient, telemetry
from tinkex.errors import APIStatusError

ID, SECRET = "client-id.access", "canary-7f3a9d1e5b8c"


def test_the_environments_headers_are_sent_and_the_secret_is_in_no_log_or_report(
    server: LoopbackServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CLOUDFLARE_ACCESS_CLIENT_ID", ID)
    monkeypatch.setenv("CLOUDFLARE_ACCESS_CLIENT_SECRET", SECRET)
    config = Config(
        base_url=server.url, api_key="tml-0123456789abcdef", files=(), telemetry_to_server=True
    )
    handler = telemetry.attach_logger(logging.DEBUG)
    try:
        with caplog.at_level(logging.DEBUG), ServiceClient(config=config) as service:
            training = service.create_lora_training_client(base_model="tiny/model")
            server.on("forward_backward").reply(403, json_body={"detail": f"{ID} sent {SECRET}"})
            error = training.forward_backward(make_data([2]), CROSS_ENTROPY).outcome(10).error
            session = training._session.session_id
            telemetry.execute(
                telemetry.events.SESSION_HEARTBEAT_FAILED,
                {"failing_for": 1.0},
                {"session_id": session, "error": str(error), "CF-Access-Client-Secret": SECRET},
            )
            logging.getLogger("tests").debug("%r %s", config, config.as_dict())
    finally:
        telemetry.detach(handler)
    assert isinstance(error, APIStatusError)
    calls = {request.path.rpartition("/")[2] for request in server.requests}
    assert {"create_session", "forward_backward", "telemetry"} <= calls
    for request in server.requests:
        found = request.headers
        assert (found["cf-access-client-id"], found["cf-access-client-secret"]) == (ID, SECRET)
    assert "SESSION_START" in str(server.service.telemetry)
    assert "forward_backward" in caplog.text
    for shown in (caplog.text, str(server.service.telemetry), repr(error), str(error.body)):
        assert SECRET not in shown
    assert ID in caplog.text, "the id is no secret: it says whose access was refused"
