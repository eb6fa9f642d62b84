"""Tokens between engines and followers: in order, once, bounded, and never other ones."""

from __future__ import annotations

import numpy as np
import pytest

from tinkex.engine.interface import SequenceDelta, TopK
from tinkex.scheduler.running.sample_streams import SampleStreams, tokens_key


class Bench:
    """Streams, and the keys they announced."""

    def __init__(self, **options: int) -> None:
        self.announced: list[set[str]] = []
        self.streams = SampleStreams(self.announced.append, **options)

    def add(self, tokens: list[int], offset: int = 0, **fields) -> None:
        given = {"request_id": "r", "index": 0, "stop_reason": None, **fields}
        array = np.array(tokens, np.int32)
        self.streams.add([SequenceDelta(tokens=array, logprobs=-array / 8, offset=offset, **given)])

    def read(self, *offsets: int) -> list[tuple[int, int, list[int]]]:
        found = self.streams.read("r", offsets or [0])
        return [(each.index, each.offset, each.tokens) for each in found]


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.streams.open("r", 1)
    return made


def test_a_late_reader_gets_what_is_there_and_then_what_follows(bench: Bench) -> None:
    bench.add([1, 2])
    bench.add([3], offset=2)
    assert bench.read() == [(0, 0, [1, 2, 3])]
    assert bench.read(3) == []
    bench.add([4], offset=3, stop_reason="stop")
    (delta,) = bench.streams.read("r", [3])
    assert (delta.tokens, delta.logprobs, delta.stop_reason) == ([4], [-0.5], "stop")
    assert bench.announced == [{tokens_key("r")}] * 3


def test_tokens_that_come_a_second_time_are_not_new(bench: Bench) -> None:
    bench.add([1, 2, 3])
    bench.add([1, 2])
    assert bench.read(3) == []
    bench.streams.open("r", 1)  # an engine gets it again
    bench.add([3, 4, 5], offset=2, stop_reason="length")
    assert bench.read(3) == [(0, 3, [4, 5])]
    bench.add([1, 2, 3, 4, 5], stop_reason="length")
    assert bench.read() == [(0, 0, [1, 2, 3, 4, 5])]


@pytest.mark.parametrize(
    ("tokens", "offset", "stop_reason"),
    [([1, 9], 0, None), ([1, 2], 0, "stop"), ([4], 3, "length"), ([7], 9, None)],
    ids=["another token", "an earlier end", "beyond the end", "after a gap"],
)
def test_tokens_that_are_other_ones_end_the_stream(tokens, offset, stop_reason) -> None:
    bench = Bench()
    bench.streams.open("r", 1)
    bench.add([1, 2, 3], stop_reason="stop")
    bench.add(tokens, offset=offset, stop_reason=stop_reason)
    bench.add([1, 2, 3, 4], stop_reason="stop")
    assert bench.read() == [(0, 0, [1, 2, 3])]


def test_sequences_grow_apart_and_keep_their_likeliest_tokens() -> None:
    bench = Bench()
    bench.streams.open("r", 2)
    for offset in range(2):
        topk = TopK(
            token_ids=np.array([[5, 6 + offset]]), logprobs=np.array([[-0.25, -1.5]], np.float32)
        )
        bench.add([offset], offset=offset, index=1, topk=topk)
    (delta,) = bench.streams.read("r", [0, 1])
    assert (delta.index, delta.topk_logprobs) == (1, [[(5, -0.25), (7, -1.5)]])
    (delta,) = bench.streams.read("r", [0, 0])
    assert delta.topk_logprobs == [[(5, -0.25), (6, -1.5)], [(5, -0.25), (7, -1.5)]]


def test_the_longest_stream_is_cut_when_memory_is_used_up() -> None:
    bench = Bench(max_bytes=80)
    bench.streams.open("r", 1)
    bench.streams.open("long", 1)
    bench.add([1, 2, 3], request_id="r")
    bench.add(list(range(8)), request_id="long")
    assert bench.streams.read("long", [0]) == []
    bench.add([9], offset=8, request_id="long")
    assert bench.streams.read("long", [0]) == [], "followers get the rest with the result"
    assert bench.read() == [(0, 0, [1, 2, 3])]
    bench.add([4, 5, 6], offset=3, request_id="r")
    assert bench.read(3) == [(0, 3, [4, 5, 6])]


def test_nothing_is_kept_of_requests_that_are_over_or_unknown(bench: Bench) -> None:
    bench.add([1])
    bench.add([1], request_id="other")
    assert bench.streams.num_open == 1
    bench.streams.end(["r", "other"])
    bench.add([2], offset=1)
    assert (bench.read(), bench.streams.num_open) == ([], 0)
    bench.streams.end(["r"])
