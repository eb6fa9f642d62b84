"""429, 408 and the server's own word on when to come back: obeyed, counted, never a storm."""

from __future__ import annotations

import datetime
from email.utils import format_datetime

import pytest

from tests.support.clock import FakeClock
from tests.support.data import CROSS_ENTROPY, PARAMS, PROMPT, loss_of, make_data
from tests.support.fixtures import Connect, make_config
from tests.support.loopback import LoopbackServer
from tinkex import Runtime, ServiceClient, types
from tinkex.errors import RateLimitError, UnprocessableEntityError

MODEL = "tiny/model"


def _http_date(clock: FakeClock, after_s: float) -> str:
    moment = datetime.datetime.fromtimestamp(clock.time() + after_s, datetime.UTC)
    return format_datetime(moment, usegmt=True)


def _headers(form: str, clock: FakeClock) -> dict[str, str]:
    return {
        "milliseconds": {"retry-after-ms": "7000"},
        "seconds": {"retry-after": "7"},
        "fraction": {"retry-after": "7.0"},
        "HTTP date": {"retry-after": _http_date(clock, 7)},
        "milliseconds first": {"retry-after-ms": "7000", "retry-after": "30"},
    }[form]


FORMS = ("milliseconds", "seconds", "fraction", "HTTP date", "milliseconds first")
forms = pytest.mark.parametrize("form", FORMS)


@forms
def test_a_training_request_is_retried_after_the_time_in_retry_after(
    server: LoopbackServer, connect: Connect, clock: FakeClock, form: str
) -> None:
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    server.on("optim_step").reply(429, headers=_headers(form, clock))
    clock.sleeps.clear()

    assert training.optim_step(types.AdamParams()).outcome(20).ok

    assert [round(slept) for slept in clock.sleeps if slept >= 0.5] == [7]
    assert server.count("optim_step") == 2
    assert server.applied() == [(1, "optim_step")]


@forms
def test_a_poll_is_retried_after_the_time_in_retry_after(
    server: LoopbackServer, connect: Connect, clock: FakeClock, form: str
) -> None:
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    polls = server.count("retrieve_future")
    server.on("retrieve_future").reply(429, headers=_headers(form, clock))
    clock.sleeps.clear()

    assert training.optim_step(types.AdamParams()).outcome(20).ok

    assert [round(slept) for slept in clock.sleeps if slept >= 0.5] == [7]
    assert server.count("retrieve_future") - polls == 2


@forms
def test_a_sample_is_refused_with_the_servers_figure(
    server: LoopbackServer, connect: Connect, runtime: Runtime, clock: FakeClock, form: str
) -> None:
    service = connect()
    sampling = service.create_sampling_client(base_model=MODEL)
    server.on("asample").reply(429, headers=_headers(form, clock))
    now = clock.monotonic()

    error = sampling.sample(PROMPT, 1, PARAMS).outcome(20).error

    limiter = runtime.registry.lookup(("limiter", service.config.tenant_key))
    assert isinstance(error, RateLimitError)
    assert error.retry_after_s == pytest.approx(7, abs=1)
    assert limiter.backoff_until - now == pytest.approx(7, abs=1)
    assert server.count("asample") == 1


@pytest.mark.parametrize(
    "header", [{"retry-after": "86400"}, {"retry-after": "-3"}, {"retry-after": "soon"}, {}]
)
def test_a_figure_that_cannot_be_meant_gives_way_to_our_own(
    server: LoopbackServer, connect: Connect, clock: FakeClock, header: dict[str, str]
) -> None:
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    server.on("optim_step").reply(429, headers=header).times(3)
    clock.sleeps.clear()

    assert training.optim_step(types.AdamParams()).outcome(20).ok

    assert [slept for slept in clock.sleeps if slept >= 0.5] == [0.5, 1.0, 2.0]
    assert server.count("optim_step") == 4


@pytest.mark.parametrize("late", ["2", "40"])
def test_the_gate_only_ever_moves_forward(server: LoopbackServer, late: str) -> None:
    """Of two 429 the longer wait stands, whichever answer comes last."""
    clock = FakeClock()
    config = make_config(server)
    with Runtime(clock=clock) as runtime:
        service = ServiceClient(config=config, runtime=runtime)
        sampling = service.create_sampling_client(base_model=MODEL)
        limiter = runtime.registry.lookup(("limiter", config.tenant_key))
        slow = server.on("asample").reply(429, headers={"retry-after": late}).held()
        server.on("asample").reply(429, headers={"retry-after": "30"})

        first = sampling.sample(PROMPT, 1, PARAMS)
        server.wait_for("asample", 1)
        assert isinstance(sampling.sample(PROMPT, 1, PARAMS).outcome(20).error, RateLimitError)
        assert limiter.backoff_until == clock.monotonic() + 30
        waiting = sampling.sample(PROMPT, 1, PARAMS)
        clock.wait_for_sleepers(3)
        slow.release()

        assert isinstance(first.outcome(20).error, RateLimitError)
        longest = max(30, int(late))
        assert limiter.backoff_until == clock.monotonic() + longest
        clock.advance(30)
        if longest > 30:
            clock.wait_for_sleepers(3)
            assert server.count("asample") == 2, "who wakes up looks again before going on"
            clock.advance(longest - 30)
        assert waiting.outcome(20).ok


def test_a_success_that_began_before_the_429_does_not_open_the_gate(
    server: LoopbackServer,
) -> None:
    clock = FakeClock()
    config = make_config(server)
    with Runtime(clock=clock) as runtime:
        service = ServiceClient(config=config, runtime=runtime)
        sampling = service.create_sampling_client(base_model=MODEL)
        limiter = runtime.registry.lookup(("limiter", config.tenant_key))
        early = server.on("asample").hold()
        server.on("asample").reply(429, headers={"retry-after": "30"})

        first = sampling.sample(PROMPT, 1, PARAMS)
        server.wait_for("asample", 1)
        assert not sampling.sample(PROMPT, 1, PARAMS).outcome(20).ok
        early.release()

        assert first.outcome(20).ok
        assert limiter.backoff_until == clock.monotonic() + 30


def test_a_server_may_forbid_a_retry(server: LoopbackServer, connect: Connect) -> None:
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    server.on("optim_step").reply(503, headers={"x-should-retry": "false"})

    outcome = training.optim_step(types.AdamParams()).outcome(20)

    assert outcome.error is not None
    assert outcome.error.type == "api_status"
    assert server.count("optim_step") == 1


def test_a_server_may_ask_for_a_retry(server: LoopbackServer, connect: Connect) -> None:
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    server.on("optim_step").reply(
        400, headers={"x-should-retry": "true"}, json_body={"detail": "later"}
    )

    assert training.optim_step(types.AdamParams()).outcome(20).ok

    assert [request.decoded["seq_id"] for request in server.calls("optim_step")] == [1, 1]


def test_a_422_is_final(server: LoopbackServer, connect: Connect) -> None:
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    server.on("optim_step").reply(422, json_body={"detail": "learning rate"})

    outcome = training.optim_step(types.AdamParams()).outcome(20)

    assert isinstance(outcome.error, UnprocessableEntityError)
    assert server.count("optim_step") == 1


@pytest.mark.parametrize("kind", ["408", "try_again"])
def test_many_not_yet_answers_are_polled_with_back_off(
    server: LoopbackServer, connect: Connect, clock: FakeClock, kind: str
) -> None:
    """200 answers at once: the polls grow a second apart, so none of them is a storm."""
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    polls, began = server.count("retrieve_future"), clock.monotonic()
    rule = server.on("retrieve_future")
    (rule.not_ready() if kind == "408" else rule.try_again()).times(200)

    output = training.forward_backward(make_data([3]), CROSS_ENTROPY).result(30)

    assert output.metrics["loss:sum"] == loss_of([3])
    assert server.count("retrieve_future") - polls == 201
    assert server.count("forward_backward") == 1
    assert (clock.monotonic() - began) / 201 > 0.9, "about one poll a second"


def test_many_5xx_on_polls_are_retried_with_back_off(
    server: LoopbackServer, connect: Connect, clock: FakeClock
) -> None:
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    polls, began = server.count("retrieve_future"), clock.monotonic()
    server.on("retrieve_future").html_502().times(30)

    assert training.optim_step(types.AdamParams()).outcome(30).ok

    assert server.count("retrieve_future") - polls == 31
    assert clock.monotonic() - began > 200, "ten seconds apart once they have grown"
    assert server.applied() == [(1, "optim_step")]


def test_a_billing_stop_is_waited_out(
    server: LoopbackServer, connect: Connect, clock: FakeClock
) -> None:
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    polls, began = server.count("retrieve_future"), clock.monotonic()
    server.on("retrieve_future").reply(402, json_body={"detail": "pay"}).times(4)

    assert training.optim_step(types.AdamParams()).outcome(20).ok

    assert server.count("retrieve_future") - polls == 5
    assert clock.monotonic() - began >= 20


def test_a_proxy_that_keeps_saying_400_is_given_up(
    server: LoopbackServer, connect: Connect
) -> None:
    """Without a body it may pass; after sixteen times it is taken at its word."""
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    server.on("optim_step").empty_400().always()

    outcome = training.optim_step(types.AdamParams()).outcome(20)

    assert outcome.error is not None
    assert outcome.error.code == "bad-request"
    assert server.count("optim_step") == 17


def test_a_server_that_stays_away_from_polls_is_given_up_after_an_hour(
    server: LoopbackServer, connect: Connect, clock: FakeClock
) -> None:
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    polls, began = server.count("retrieve_future"), clock.monotonic()
    server.on("retrieve_future").html_502().always()

    outcome = training.optim_step(types.AdamParams()).outcome(30)

    assert outcome.error is not None
    assert outcome.error.code == "server-error"
    assert 3600 <= clock.monotonic() - began < 3700
    assert server.count("retrieve_future") - polls < 400, "one poll in ten seconds"


def test_an_hour_of_not_yet_is_no_reason_to_give_up(
    server: LoopbackServer, connect: Connect, clock: FakeClock
) -> None:
    """The server answers, so it is there; only silence and trouble count."""
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    began = clock.monotonic()
    server.on("retrieve_future").not_ready("paused_capacity").times(4000)

    assert training.optim_step(types.AdamParams()).outcome(60).ok
    assert clock.monotonic() - began > 3600
