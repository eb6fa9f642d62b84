"""Cutting batches and combining their results, against the official client's own arithmetic."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.data import make_data, make_datum
from tests.unit.client.steady import steady
from tinkex import ForwardBackwardOutput, ValidationError
from tinkex.client.chunking import combine, reduce_metrics, split

SUFFIXES = ("mean", "sum", "min", "max", "slack", "hash2", "unique", "other")


@steady
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=60),
    st.integers(1, 20),
    st.integers(1, 2000),
)
def test_chunks_keep_order_and_limits(
    lengths: list[int], max_examples: int, max_bytes: int
) -> None:
    data = make_data(lengths)
    chunks = split(data, max_examples=max_examples, max_bytes=max_bytes)
    assert [datum for chunk in chunks for datum in chunk] == data
    for chunk in chunks:
        assert 1 <= len(chunk) <= max_examples
        assert len(chunk) == 1 or sum(datum.size_bytes for datum in chunk) <= max_bytes


@steady
@given(st.lists(st.integers(1, 40), min_size=2, max_size=40), st.integers(1, 2000))
def test_no_chunk_could_have_taken_the_next_example(lengths: list[int], max_bytes: int) -> None:
    chunks = split(make_data(lengths), max_examples=1000, max_bytes=max_bytes)
    for chunk, following in itertools.pairwise(chunks):
        size = sum(datum.size_bytes for datum in [*chunk, following[0]])
        assert size > max_bytes


def test_what_is_no_batch_is_refused() -> None:
    with pytest.raises(ValidationError, match="empty"):
        split([], max_examples=1, max_bytes=1)
    with pytest.raises(ValidationError, match="dict"):
        split([make_datum(1), {}], max_examples=9, max_bytes=999)  # type: ignore[list-item]


numbers = st.floats(-1e6, 1e6, allow_nan=False).map(lambda value: round(value, 3))


@st.composite
def chunked_metrics(draw: Any) -> tuple[list[dict[str, float]], list[int]]:
    count = draw(st.integers(1, 4))
    names = [f"m{i}:{suffix}" for i, suffix in enumerate(SUFFIXES)]
    chunks = []
    for _ in range(count):
        kept = [name for name in names if draw(st.integers(0, 9))]
        values = draw(st.lists(numbers, min_size=len(kept), max_size=len(kept)))
        whole = {name: float(int(v)) for name, v in zip(kept, values, strict=True)}
        chunks.append(
            {
                name: whole[name] if "hash2" in name else value
                for name, value in zip(kept, values, strict=True)
            }
        )
    weights = draw(st.lists(st.integers(1, 50), min_size=count, max_size=count))
    return chunks, weights


@steady
@given(chunked_metrics())
def test_metrics_combine_as_in_the_official_client(
    drawn: tuple[list[dict[str, float]], list[int]],
) -> None:
    helpers = pytest.importorskip("tinker.lib.chunked_fwdbwd_helpers")
    tinker = pytest.importorskip("tinker")
    chunks, weights = drawn
    theirs = helpers.combine_fwd_bwd_output_results(
        [
            tinker.types.ForwardBackwardOutput(
                loss_fn_output_type="x", loss_fn_outputs=[{}] * weight, metrics=dict(metrics)
            )
            for metrics, weight in zip(chunks, weights, strict=True)
        ]
    ).metrics
    ours = reduce_metrics(chunks, weights)
    assert set(ours) == set(theirs)
    for name, value in theirs.items():
        assert math.isclose(ours[name], value, rel_tol=1e-9, abs_tol=1e-6), name


def test_a_mean_over_no_examples_is_plain() -> None:
    assert reduce_metrics([{"a:mean": 1.0}, {"a:mean": 3.0}], [0, 0]) == {"a:mean": 2.0}


def test_a_metric_without_a_suffix_is_kept_where_it_is_the_truth() -> None:
    assert reduce_metrics([{"plain": 1.0}], [1]) == {"plain": 1.0}
    assert reduce_metrics([{"plain": 1.0}, {"plain": 2.0}], [1, 1]) == {}


def test_rows_are_put_together_in_order() -> None:
    def output(kind: str, *rows: dict[str, Any]) -> ForwardBackwardOutput:
        return ForwardBackwardOutput(loss_fn_output_type=kind, loss_fn_outputs=list(rows))

    whole = combine([output("first", {"a": 1}), output("second", {"b": 2}, {"c": 3})])
    assert whole.loss_fn_output_type == "first"
    assert whole.loss_fn_outputs == [{"a": 1}, {"b": 2}, {"c": 3}]
