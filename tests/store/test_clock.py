"""Ages do not jump with the wall clock, and dates do not come early."""

from __future__ import annotations

import pytest

from tests.store.work import OWNER, add_checkpoint, add_session
from tinkex.store import Database, checkpoints, clock, sessions
from tinkex.store.clock import SteadyClock, steady_now

HOUR = 3600.0


class Times:
    """A wall clock and an uptime that a test moves."""

    def __init__(self) -> None:
        self.wall_s = 1_000_000.0
        self.up_s = 50.0

    def pass_by(self, seconds: float) -> None:
        self.wall_s += seconds
        self.up_s += seconds

    def clock(self) -> SteadyClock:
        return SteadyClock(lambda: self.wall_s, lambda: self.up_s)


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    """The times the store sees."""
    made = Times()
    monkeypatch.setattr(clock, "_clock", made.clock())
    monkeypatch.setattr(clock.time, "time", lambda: made.wall_s)
    return made


@pytest.mark.parametrize("jump_s", [HOUR, -HOUR, 400 * 24 * HOUR])
def test_a_jump_of_the_wall_clock_is_no_time(times: Times, jump_s: float) -> None:
    before = steady_now()
    times.wall_s += jump_s
    assert steady_now() == before
    times.pass_by(10)
    assert steady_now() == before + 10


def test_a_later_run_goes_on_where_the_last_one_was(db: Database, times: Times) -> None:
    db.write(clock.keep)
    times.pass_by(5)
    db.write(clock.keep)
    kept = steady_now()
    times.wall_s -= HOUR  # set back while the server was down
    clock._clock = times.clock()
    assert steady_now() == kept - HOUR
    db.write(clock.resume)
    assert steady_now() == kept
    times.wall_s += 3 * HOUR  # and forward: the only clock there is says that time went by
    clock._clock = times.clock()
    db.write(clock.resume)
    assert steady_now() == kept + 2 * HOUR


@pytest.mark.parametrize("jump_s", [HOUR, -HOUR])
def test_a_checkpoint_never_goes_before_its_date(db: Database, times: Times, jump_s: float) -> None:
    saved = db.write(add_checkpoint, expires_at=times.wall_s + 100)
    times.wall_s += jump_s
    times.pass_by(99)
    assert db.read(checkpoints.get, saved) is not None
    assert db.write(checkpoints.drop_expired) == []
    times.wall_s -= jump_s
    times.pass_by(2)
    assert db.read(checkpoints.get, saved) is None
    assert db.write(checkpoints.drop_expired) == [saved]


@pytest.mark.parametrize("jump_s", [HOUR, -HOUR])
def test_a_session_is_silent_by_the_time_that_passed(
    db: Database, times: Times, jump_s: float
) -> None:
    session_id = db.write(add_session)
    times.wall_s += jump_s
    times.pass_by(59)
    assert db.write(sessions.finish_silent, steady_now() - 60) == []
    times.pass_by(2)
    assert db.write(sessions.finish_silent, steady_now() - 60) == [session_id]
    ended = db.read(sessions.get, OWNER, session_id)
    assert ended is not None
    assert ended.finished_at == steady_now()
