"""The number of samplers stays in its bounds, goes up at once and down only after idleness."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinkex.errors import ConfigError
from tinkex.launch.scaling import SamplerCount, ScalingPolicy, next_count
from tinkex.launch.settings import Reservation, WorkerSpec, actor_name, parse_samplers

POLICY = ScalingPolicy(min_samplers=1, max_samplers=8, target_sample_tokens=100, idle_s=60.0)
LOOKS = st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 8), st.floats(0.0, 90.0)))


@given(st.integers(0, 20), LOOKS)
def test_any_history_keeps_the_bounds_and_goes_down_by_one_at_most(start, looks):
    count, now, calm_since = SamplerCount(wanted=start), 0.0, None
    for waiting, num_idle, pause_s in looks:
        now += pause_s
        is_calm = waiting == 0 and num_idle > 0
        calm_since = (now if calm_since is None else calm_since) if is_calm else None
        after = next_count(POLICY, count, waiting_tokens=waiting, num_idle=num_idle, now=now)
        assert 1 <= after.wanted <= 8
        assert after.wanted * 100 >= min(waiting, 800)
        if after.wanted < min(max(count.wanted, 1), 8):
            assert calm_since is not None
            assert now - calm_since >= 60.0
            assert after.wanted == min(count.wanted, 8) - 1
        count = after


def test_a_name_changes_with_what_the_actor_was_given():
    def name(join="a:1", token="t", **reserved):
        spec = WorkerSpec(join=join, models=("m=x",))
        return actor_name("sampler", 0, spec, Reservation(**reserved), token)

    assert name() == name()
    labels = {"zone": "a", "disk": "fast"}
    assert name(labels=labels) == name(labels=dict(reversed(labels.items())))
    different = [name(), name(token="u"), name(join="a:2"), name(gpus=1.0), name(labels=labels)]
    assert len(set(different)) == 5


def test_samplers_are_read_as_bounds():
    assert parse_samplers("1:8") == (1, 8)
    assert parse_samplers("2") == (2, 2)


@pytest.mark.parametrize("text", ["", "many", "8:1", "-1:2", "1:2:3"])
def test_what_is_no_bounds_is_refused_with_its_value(text):
    with pytest.raises(ConfigError, match=re.escape(repr(text))):
        parse_samplers(text)
