"""Sessions: heartbeats on a timer of their own, an end that is told, warnings in time."""

from __future__ import annotations

import concurrent.futures

import pytest

from tests.support.clock import FakeClock
from tests.support.data import PARAMS, PROMPT
from tests.support.fixtures import make_config
from tests.support.loopback import LoopbackServer
from tests.support.state import Session
from tests.support.waiting import wait_until
from tinkex import Runtime, ServiceClient, telemetry
from tinkex.errors import PermissionDeniedError

MODEL = "tiny/model"


@pytest.fixture
def clock() -> FakeClock:
    """Time passes when a test says so."""
    return FakeClock()


@pytest.fixture
def service(server: LoopbackServer, runtime: Runtime) -> ServiceClient:
    """A client with an open session that beats every ten seconds."""
    client = ServiceClient(config=make_config(server, heartbeat_interval_s=10), runtime=runtime)
    client.create_sampling_client(base_model=MODEL)
    return client


def _session(server: LoopbackServer) -> Session:
    (session,) = server.service.world.sessions.values()
    return session


def _beat(server: LoopbackServer, clock: FakeClock, interval_s: float = 10) -> None:
    """Let one interval pass, and wait until the beat was answered and the next is set."""
    clock.wait_for_sleepers(2)
    count = server.count("session_heartbeat")
    clock.advance(interval_s)
    server.wait_for("session_heartbeat", count + 1)
    clock.wait_for_sleepers(2)


def test_a_session_beats_once_per_interval(
    server: LoopbackServer, service: ServiceClient, clock: FakeClock
) -> None:
    clock.wait_for_sleepers(2)
    clock.advance(9.9)
    assert server.count("session_heartbeat") == 0
    clock.advance(0.1)
    server.wait_for("session_heartbeat", 1)
    for _ in range(3):
        _beat(server, clock)

    assert _session(server).heartbeats == 4
    assert server.calls("session_heartbeat")[0].decoded["session_id"] == _session(server).session_id


def test_one_session_however_many_clients(
    server: LoopbackServer, service: ServiceClient, clock: FakeClock
) -> None:
    for _ in range(3):
        service.create_sampling_client(base_model=MODEL)

    assert server.count("create_session") == 1
    _beat(server, clock)
    assert server.count("session_heartbeat") == 1


def test_many_first_calls_at_once_open_one_session(
    server: LoopbackServer, runtime: Runtime
) -> None:
    service = ServiceClient(config=make_config(server), runtime=runtime)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: service.create_sampling_client(base_model=MODEL), range(16)))

    assert len({client.sampling_session_id for client in made}) == 16
    counts = [server.count(r) for r in ("client_config", "dynamic_config", "create_session")]
    assert counts == [1, 1, 1]


def test_a_failed_opening_is_tried_anew_by_the_next_call(
    server: LoopbackServer, runtime: Runtime
) -> None:
    service = ServiceClient(config=make_config(server), runtime=runtime)
    server.on("client_config").reply(403, json_body={"detail": "not yet"})
    server.on("create_session").reply(403, json_body={"detail": "not yet"})

    for _ in range(2):
        with pytest.raises(PermissionDeniedError):
            service.create_sampling_client(base_model=MODEL)

    assert service.create_sampling_client(base_model=MODEL).sampling_session_id
    assert (server.count("client_config"), server.count("create_session")) == (2, 2)


def test_a_slow_tenant_does_not_delay_another(runtime: Runtime, clock: FakeClock) -> None:
    """The first server never answers its heartbeat; the second's beats come on time."""
    with LoopbackServer() as slow, LoopbackServer() as quick:
        held = slow.on("session_heartbeat").hold().always()
        samplers = []  # kept: a session without a user sends no more heartbeats
        for server in (slow, quick):
            service = ServiceClient(
                config=make_config(server, heartbeat_interval_s=10), runtime=runtime
            )
            samplers.append(service.create_sampling_client(base_model=MODEL))
        clock.wait_for_sleepers(4)
        for beats in range(1, 6):
            clock.advance(10)
            quick.wait_for("session_heartbeat", beats)
            clock.wait_for_sleepers(3)

        assert quick.count("session_heartbeat") == 5
        assert slow.count("session_heartbeat") == 1
        held.release()


def test_a_finished_session_stops_beating(
    server: LoopbackServer, service: ServiceClient, clock: FakeClock
) -> None:
    clock.wait_for_sleepers(2)
    server.on("session_heartbeat").reply(410)
    clock.advance(10)
    server.wait_for("session_heartbeat", 1)
    wait_until(lambda: len(clock.sleeping) == 1)  # only the dynamic config still waits
    clock.advance(100)

    assert server.count("session_heartbeat") == 1


def test_failures_are_reported_at_once_and_warned_of_after_two_minutes(
    server: LoopbackServer,
    service: ServiceClient,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    failing_for: list[float] = []
    telemetry.attach(
        "beats",
        "tinkex.session.heartbeat_failed",
        lambda e, measured, a, config: config.append(measured["failing_for"]),
        failing_for,
    )
    server.on("session_heartbeat").reply(503).times(13)
    try:
        with caplog.at_level("WARNING", logger="tinkex"):
            for _ in range(11):
                _beat(server, clock)
            assert not [r for r in caplog.records if "heartbeat" in r.getMessage()]
            _beat(server, clock)
            _beat(server, clock)
            wait_until(lambda: len(failing_for) == 13)
            warnings = [r for r in caplog.records if "heartbeat" in r.getMessage()]
            _beat(server, clock)
    finally:
        telemetry.detach("beats")

    assert failing_for == [10.0 * beat for beat in range(1, 14)]
    assert len(warnings) == 2
    assert _session(server).heartbeats == 1
    assert server.count("session_heartbeat") == 14, "a failed beat is not retried in between"


def test_samples_go_on_while_heartbeats_fail(
    server: LoopbackServer, service: ServiceClient, clock: FakeClock
) -> None:
    sampling = service.create_sampling_client(base_model=MODEL)
    server.on("session_heartbeat").drop_before_answer(is_reset=True).times(3)
    for _ in range(3):
        _beat(server, clock)

    assert sampling.sample(PROMPT, 1, PARAMS).outcome(20).ok


@pytest.mark.parametrize(
    ("error", "status"),
    [(None, "success"), (ValueError, "errored"), (KeyboardInterrupt, "interrupted")],
)
def test_leaving_the_block_reports_how_it_ended(
    server: LoopbackServer, runtime: Runtime, error: type[BaseException] | None, status: str
) -> None:
    def work() -> None:
        with ServiceClient(config=make_config(server), runtime=runtime) as service:
            service.create_sampling_client(base_model=MODEL)
            if error is not None:
                raise error("for the test")

    if error is None:
        work()
    else:
        with pytest.raises(error):
            work()

    finished = _session(server).finished
    assert finished is not None
    assert finished["reason"] == {"type": status}
    assert server.count("finish_session") == 1


def test_closing_twice_finishes_once_and_ends_the_heartbeat(
    server: LoopbackServer, service: ServiceClient, clock: FakeClock
) -> None:
    clock.wait_for_sleepers(2)

    service.close().result(20)
    service.close().result(20)

    assert server.count("finish_session") == 1
    wait_until(lambda: not clock.sleeping)  # no timer is left
    clock.advance(100)
    assert server.count("session_heartbeat") == 0


def test_a_close_without_a_waiter_is_still_sent(
    server: LoopbackServer, service: ServiceClient, runtime: Runtime
) -> None:
    service.close("errored", "it went wrong")
    runtime.stop()

    assert _session(server).finished == {"reason": {"type": "errored"}, "detail": "it went wrong"}


def test_closing_survives_a_server_that_is_gone(
    server: LoopbackServer, service: ServiceClient, runtime: Runtime
) -> None:
    server.stop()

    ending = service.close()
    runtime.stop()

    assert ending.outcome(5).error is not None
    assert not runtime.is_running


def test_a_client_that_opened_no_session_finishes_none(
    server: LoopbackServer, runtime: Runtime
) -> None:
    with ServiceClient(config=make_config(server), runtime=runtime):
        pass

    assert server.requests == []
