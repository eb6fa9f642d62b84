"""What may be sent again, and when: header forms, budgets, and properties that always hold."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.client.steady import steady
from tinkex import RetryConfig, RetryPolicy, ValidationError
from tinkex.client.retry import (
    MAX_BACKOFF_S,
    NO_RETRIES,
    backoff_s,
    chosen_policy,
    is_retryable_status,
    retry_after_s,
    should_retry,
)

NOW = 1_800_000_000.0
policies = st.builds(
    RetryPolicy,
    max_retries=st.none() | st.integers(0, 50),
    budget_s=st.floats(0, 1e6),
    base_s=st.floats(0.001, 5),
    max_s=st.floats(5, 100),
    jitter=st.floats(0, 1),
)


def http_date(seconds_from_now: float) -> str:
    return format_datetime(datetime.fromtimestamp(NOW + seconds_from_now, UTC), usegmt=True)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "0.5"}, 0.0005),
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": "2.5"}, 2.5),
        ({"retry-after": http_date(30)}, 30.0),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "60"}, 60.0),
        ({"retry-after": "61"}, 61.0),
        ({"retry-after": http_date(-5)}, None),
        ({"retry-after": http_date(3600)}, 3600.0),
        ({"retry-after": "0"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "in a while"}, None),
        ({"retry-after": ""}, None),
    ],
)
def test_the_servers_figure_is_read_in_every_form(
    headers: dict[str, str], expected: float | None
) -> None:
    assert retry_after_s(headers, NOW) == expected


@steady
@given(st.text(max_size=30), st.text(max_size=30))
def test_no_header_fails_or_makes_training_wait_longer_than_a_minute(ms: str, s: str) -> None:
    wait = retry_after_s({"retry-after-ms": ms, "retry-after": s}, NOW)
    assert wait is None or 0 < wait < float("inf")
    backoff = backoff_s(wait)
    assert backoff is None or 0 < backoff <= MAX_BACKOFF_S


def test_training_takes_over_a_minute_but_no_more() -> None:
    assert backoff_s(60.0) == 60.0
    assert backoff_s(60.1) is None
    assert backoff_s(None) is None


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 599])
def test_statuses_that_pass(status: int) -> None:
    assert is_retryable_status(status)
    assert should_retry(status, {}, b"body")
    assert not should_retry(status, {"x-should-retry": "False"}, b"body")


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 410, 422])
def test_statuses_that_do_not(status: int) -> None:
    assert not is_retryable_status(status)
    assert not should_retry(status, {"x-should-retry": "perhaps"}, b"body")
    assert should_retry(status, {"x-should-retry": "TRUE"}, b"body")


def test_an_empty_400_is_a_proxys_and_passes() -> None:
    assert should_retry(400, {}, b"")
    assert not should_retry(400, {}, b"{}")


@steady
@given(policies, st.integers(0, 10_000), st.floats(0, 1))
def test_delays_grow_to_their_limit_and_jitter_only_shortens(
    policy: RetryPolicy, retries: int, chance: float
) -> None:
    delay = policy.delay_s(retries, None, chance)
    full = policy.delay_s(retries, None, 1.0)
    assert 0 <= delay <= full <= policy.max_s
    assert full * (1 - policy.jitter) <= delay + 1e-9
    assert full <= policy.delay_s(retries + 1, None, 1.0)
    assert policy.delay_s(retries, 7.0, chance) == 7.0


@steady
@given(policies, st.integers(0, 100), st.floats(0, 2e6))
def test_a_policy_ends_for_good(policy: RetryPolicy, retries: int, elapsed: float) -> None:
    """Once it says no, it says no to everything later."""
    if not policy.allows(retries, elapsed):
        assert not policy.allows(retries + 1, elapsed)
        assert not policy.allows(retries, elapsed + 1)
    assert not policy.allows(retries, policy.budget_s)


def test_no_retries_allows_none() -> None:
    assert not NO_RETRIES.allows(0, 0.0)


@pytest.mark.parametrize(
    "numbers",
    [
        {"max_retries": -1},
        {"base_s": 0},
        {"base_s": 2, "max_s": 1},
        {"jitter": 1.5},
        {"jitter": -0.1},
        {"max_in_flight": 0},
    ],
)
def test_numbers_that_make_no_sense_are_refused(numbers: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RetryPolicy(**numbers)


def test_the_official_names_become_a_policy() -> None:
    config = RetryConfig(progress_timeout=10, retry_delay_base=1, retry_delay_max=4)
    policy = config.to_policy()
    assert policy == RetryPolicy(budget_s=10, base_s=1, max_s=4, jitter=0.25, max_in_flight=1000)
    off = RetryConfig(enable_retry_logic=False, max_connections=3).to_policy()
    assert not off.allows(0, 0.0)
    assert off.max_in_flight == 3
    endless = RetryConfig(enable_stuck_detection=False).to_policy()
    assert endless.allows(10**6, 1e12)


def test_our_own_words_win_over_the_official_ones() -> None:
    ours = RetryPolicy(max_retries=1)
    assert chosen_policy(ours, RetryConfig()) is ours
    assert chosen_policy(None, None) is None
    assert chosen_policy(None, RetryConfig()) == RetryConfig().to_policy()
    assert chosen_policy(None, None, is_retrying=True) == RetryConfig().to_policy()
    assert chosen_policy(ours, None, is_retrying=True) is ours


def test_no_connections_at_all_are_refused() -> None:
    with pytest.raises(ValidationError, match="max_connections=0"):
        RetryConfig(max_connections=0)
