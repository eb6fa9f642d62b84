"""The engine's sampling time among requests: all of it, and by sequences."""

from __future__ import annotations

import pytest

from tinkex.scheduler.queues.slot_samples import QueuedSample
from tinkex.scheduler.running.sampling_time import SamplingTime
from tinkex.store.samples import Sample


def queued(name: str, num_samples: int) -> QueuedSample:
    sample = Sample(
        request_id=name,
        owner="a",
        sampling_session_id="s",
        seq_id=0,
        num_samples=num_samples,
        cost=1,
        state="queued",
        created_at=0.0,
    )
    return QueuedSample(sample=sample)


def test_a_spell_is_divided_by_the_sequences_that_ran() -> None:
    time, one, three = SamplingTime(), queued("one", 1), queued("three", 3)
    time.passed(5.0, 0)  # nothing ran
    time.join(one)
    time.passed(1.0, 1)
    time.join(three)
    time.passed(2.0, 4)
    time.leave(one)
    time.passed(3.0, 3)
    time.leave(three)
    assert one.engine_s == pytest.approx(1.0 + 0.5)
    assert three.engine_s == pytest.approx(1.5 + 3.0)
