"""REST and admin calls, traces, whoami, logs and handles: the small doors of the client."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from datetime import UTC, date, datetime
from typing import Any

import pytest

import tinkex
from tests.support.data import PARAMS, PROMPT
from tests.support.fixtures import Connect, make_config
from tests.support.loopback import LoopbackServer
from tinkex import AdminClient, ModelInput, RestClient, RetryPolicy, Runtime, ServiceClient
from tinkex.client.logs import show_log
from tinkex.client.sampler_handle import SamplerHandle
from tinkex.client.sampling import SamplingClient
from tinkex.errors import (
    APIResponseValidationError,
    RequestFailedError,
    ValidationError,
)
from tinkex.types import SessionSearchRequest

MODEL = "tiny/model"


@pytest.fixture
def rest(connect: Connect) -> RestClient:
    return connect().create_rest_client()


# Admin.


@pytest.fixture
def admin(server: LoopbackServer, runtime: Runtime) -> AdminClient:
    return AdminClient(config=make_config(server), runtime=runtime)


AUDIT = {"entries": []}
USAGE: dict[str, Any] = {"events": []}


def test_an_audit_log_is_requested_by_kind_and_day(
    server: LoopbackServer, admin: AdminClient
) -> None:
    server.on("audit").reply(422, json_body={"detail": "looked at"}).always()
    assert admin.get_audit_log().outcome(5).error is not None
    assert admin.get_audit_log("teams", date(2026, 1, 2)).outcome(5).error is not None
    assert [call.query for call in server.calls("audit")] == [
        {"event_type": "all"},
        {"event_type": "teams", "day": "2026-01-02"},
    ]


def test_billing_takes_moments_and_texts(server: LoopbackServer, admin: AdminClient) -> None:
    server.on("billing_usage").reply(422, json_body={"detail": "looked at"}).always()
    server.on("checkpoint_storage").reply(422, json_body={"detail": "looked at"}).always()
    moment = datetime(2026, 1, 2, 3, tzinfo=UTC)
    assert admin.get_billing_usage(moment, "2026-01-03T00:00:00Z").outcome(5).error is not None
    assert admin.get_current_checkpoint_storage_usage("p").outcome(5).error is not None
    assert admin.get_current_checkpoint_storage_usage().outcome(5).error is not None
    (usage,) = server.calls("billing_usage")
    assert usage.query == {
        "starting_on": "2026-01-02T03:00:00+00:00",
        "ending_before": "2026-01-03T00:00:00Z",
    }
    storage = [call.query for call in server.calls("checkpoint_storage")]
    assert storage == [{"project_id": "p"}, {}]


def test_async_pairs_ask_the_same(server: LoopbackServer, admin: AdminClient) -> None:
    for route in ("audit", "billing_usage", "checkpoint_storage"):
        server.on(route).reply(422, json_body={"detail": "looked at"}).always()

    async def ask() -> list[Any]:
        return await asyncio.gather(
            admin.get_audit_log_async("projects"),
            admin.get_billing_usage_async("a", "b"),
            admin.get_current_checkpoint_storage_usage_async(),
            return_exceptions=True,
        )

    assert all(isinstance(error, tinkex.UnprocessableEntityError) for error in asyncio.run(ask()))
    assert server.calls("audit")[0].query == {"event_type": "projects"}


# REST.


def test_a_rest_client_of_its_own_needs_no_service(server: LoopbackServer) -> None:
    with Runtime() as runtime:
        client = RestClient(base_url=server.url, api_key="tml-a", runtime=runtime)
        assert client.list_sessions().result(10).sessions == []


def test_a_trace_is_waited_for_until_it_is_ready(server: LoopbackServer, rest: RestClient) -> None:
    server.on("trace_export").reply(json_body={"status": "pending"}).times(2)
    server.on("trace_export").reply(json_body={"status": "ready", "url": "https://x/t"})
    assert rest.export_session_trace("session-1").result(10) == "https://x/t"
    assert server.count("trace_export") == 3


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"status": "failed", "error": "too big"}, RequestFailedError),
        ({"status": "ready"}, APIResponseValidationError),
    ],
)
def test_a_trace_that_does_not_come_is_an_error(
    server: LoopbackServer, rest: RestClient, answer: Any, error: type[Exception]
) -> None:
    server.on("trace_export").reply(json_body=answer)
    with pytest.raises(error):
        asyncio.run(rest.export_session_trace_async("session-1"))


def test_sessions_are_moved_and_searched(server: LoopbackServer, rest: RestClient) -> None:
    server.on("search_sessions").reply(json_body={"sessions": [], "next_cursor": None}).always()
    server.on("assign_project").reply(json_body={}).always()
    asyncio.run(rest.assign_session_project_async("session-1", "p-1"))
    assert server.calls("assign_project")[0].decoded == {"project_id": "p-1"}
    rest.search_sessions(SessionSearchRequest()).outcome(5)
    assert server.count("search_sessions") == 1


def test_names_that_are_no_paths_are_refused_unsent(
    server: LoopbackServer, rest: RestClient
) -> None:
    for use in (
        rest.delete_checkpoint_from_tinker_path,
        rest.get_weights_info_by_tinker_path,
        rest.get_training_run_by_tinker_path,
        rest.copy_weights,
    ):
        with pytest.raises(ValidationError):
            use("tinker://run/../weights/x").result(10)
    assert server.requests == []


def test_whoami_needs_a_server_that_reports_the_owner(
    server: LoopbackServer, connect: Connect
) -> None:
    with pytest.raises(ValidationError, match="does not report"):
        connect().create_rest_client().whoami().result(5)


def token(**claims: Any) -> str:
    middle = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"eyJ0eXAiOiJKV1QifQ.{middle}.c2ln"


def test_whoami_reads_the_token(server: LoopbackServer, connect: Connect) -> None:
    server.service.flags["pjwt_auth_enabled"] = True
    jwt = token(exp=4_000_000_000, sub="urn:me", org_id="o", email="a@b.c")
    server.on("auth_token").reply(json_body={"jwt": jwt})
    who = connect().create_rest_client().whoami().result(5)
    assert (who.user_urn, who.org_urn, who.email) == ("urn:me", "tml:organization:o", "a@b.c")


@pytest.mark.parametrize("text", ["", "a.b", "a.!!!.c", f"a.{'e30'[:2]}.c", "eyJ.W10.x"])
def test_a_token_that_says_nothing_is_no_error(text: str) -> None:
    from tinkex.client.connection import token_claims

    assert token_claims(text) == {}


# Handles.


def test_a_sampler_handle_is_read_back_and_holds_no_key(connect: Connect) -> None:
    sampler = connect(api_key="tml-very-secret").create_sampling_client(
        base_model=MODEL, retry=RetryPolicy(max_retries=2)
    )
    text = sampler.get_sampler_handle()
    read = SamplerHandle.from_text(text)
    assert read.sampling_session_id == sampler.sampling_session_id
    assert read.retry == RetryPolicy(max_retries=2)
    assert b"secret" not in base64.urlsafe_b64decode(text)


@pytest.mark.parametrize("text", ["", "no handle", "bm90IGpzb24=", "e30=", "ÄÖÜ"])
def test_what_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="handle"):
        SamplingClient.from_sampler_handle(text, api_key="tml-a")


# Samplers.


def test_a_server_that_sends_too_few_samples_is_an_error(
    server: LoopbackServer, connect: Connect
) -> None:
    sampler = connect().create_sampling_client(base_model=MODEL)
    sampler.sample(PROMPT, 1, PARAMS).result(10)
    of_one_sample = next(iter(server.service.world.promises))
    server.on("asample").reply(json_body={"request_id": of_one_sample})
    with pytest.raises(APIResponseValidationError, match="1 of 2"):
        sampler.sample(PROMPT, 2, PARAMS).result(10)


def test_logprobs_that_do_not_come_are_an_error(server: LoopbackServer, connect: Connect) -> None:
    sampler = connect().create_sampling_client(base_model=MODEL)
    first = sampler.sample(PROMPT, 1, PARAMS)
    first.result(10)
    request_id = next(iter(server.service.world.promises))
    server.on("asample").reply(json_body={"request_id": request_id})
    with pytest.raises(APIResponseValidationError, match="prompt logprobs"):
        sampler.compute_logprobs(ModelInput.from_ints([1, 2])).result(10)


def test_cancelling_logprobs_cancels_the_sample_behind_them(
    server: LoopbackServer, connect: Connect, runtime: Runtime
) -> None:
    server.hold("asample")
    sampler = connect().create_sampling_client(base_model=MODEL)
    before = runtime.num_tasks
    handle = sampler.compute_logprobs(PROMPT)
    server.wait_for("retrieve_future")
    assert handle.cancel()
    server.wait_until(lambda: runtime.num_tasks <= before)


def test_clients_show_what_they_are_and_no_key(connect: Connect) -> None:
    service = connect(api_key="tml-very-secret")
    training = service.create_lora_training_client(base_model=MODEL)
    sampler = service.create_sampling_client(base_model=MODEL)
    for client in (service, training, sampler, service.config, service.create_rest_client()):
        assert "secret" not in repr(client)
    assert training.model_id in repr(training)
    assert sampler.sampling_session_id in repr(sampler)


def test_an_unknown_setting_is_warned_of(server: LoopbackServer, runtime: Runtime) -> None:
    with pytest.warns(UserWarning, match="no_such_thing"):
        ServiceClient(config=make_config(server), runtime=runtime, no_such_thing=1)


def test_a_sampler_needs_a_model_or_a_path_and_may_have_both(
    server: LoopbackServer, connect: Connect
) -> None:
    service = connect()
    with pytest.raises(ValidationError, match="Give model_path or base_model"):
        service.create_sampling_client()
    training = service.create_lora_training_client(base_model=MODEL)
    path = training.save_weights_for_sampler("named").result(10).path
    service.create_sampling_client(path, MODEL)
    (request,) = server.calls("create_sampling_session")
    assert (request.decoded["model_path"], request.decoded["base_model"]) == (path, MODEL)


def test_an_optimizer_step_needs_parameters_of_one_kind(connect: Connect) -> None:
    training = connect().create_lora_training_client(base_model=MODEL)
    adam = tinkex.AdamParams()
    with pytest.raises(ValidationError, match="not both"):
        training.optim_step(adam, adam_params=adam).result(10)
    with pytest.raises(ValidationError, match="NoneType"):
        training.optim_step().result(10)


# Logs.


@pytest.fixture
def logger() -> Any:
    log = logging.getLogger("tinkex")
    handlers, level = list(log.handlers), log.level
    yield log
    log.handlers[:] = handlers
    log.setLevel(level)


def test_a_level_shows_the_log_once(logger: logging.Logger, capsys: Any) -> None:
    before = len(logger.handlers)
    show_log(None)
    assert len(logger.handlers) == before
    show_log("info")
    show_log("debug")
    assert len(logger.handlers) == before + 1
    logger.debug("seen on stderr")
    output = capsys.readouterr()
    assert output.err.count("seen on stderr") == 1
    assert output.out == ""
