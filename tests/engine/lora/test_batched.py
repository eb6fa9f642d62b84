"""Adapters multiplied together: the numbers of plain autograd, whatever their neighbours are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.engine.oracle import Oracle, assert_same, saved_gradients
from tests.engine.work import sft_datum, warm_up
from tinkex.engine.interface import LoraSpec, TrainRequest
from tinkex.engine.lora.batched import together
from tinkex.engine.lora.linear import (
    LoraPair,
    Segment,
    lora_linear,
    lora_linear_backward,
)
from tinkex.engine.ops.linear import FrozenLinear
from tinkex.engine.options import EngineOptions
from tinkex.engine.torch_engine import TorchEngine

INPUTS, PARTS, SCALE = 5, (4, 2), 0.5


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def _pair(rank: int = 3, scale: float = SCALE, inputs: int = INPUTS) -> LoraPair:
    a_RD = _random(rank * len(PARTS), inputs)
    bs_OR = tuple(_random(size, rank) for size in PARTS)
    gradient = LoraPair(torch.ones_like(a_RD), tuple(torch.ones_like(b) for b in bs_OR), scale)
    return LoraPair(a_RD, bs_OR, scale, gradient)


def _segments(counts: list[int], **options) -> list[Segment]:
    ends = np.cumsum(counts)
    return [
        Segment(int(end) - count, int(end), _pair(**options))
        for count, end in zip(counts, ends, strict=True)
    ]


def _plain(x_TD: Tensor, weight_OD: Tensor, segments: list[Segment], numbers: list[Tensor]):
    """The same by autograd's own operations; `numbers` are A and both B of each adapter."""
    changes, left = [], iter(numbers)
    for segment in segments:
        a, *bs = next(left), next(left), next(left)
        halves = zip(a.chunk(2), bs, strict=True)
        x = x_TD[segment.rows]
        changes.append(segment.pair.scale * torch.cat([x @ h.T @ b.T for h, b in halves], dim=1))
    return F.linear(x_TD, weight_OD) + torch.cat(changes)


@pytest.mark.parametrize("counts", [[3] * 5, [2, 3, 2, 3], [1] * 4, [4, 3, 2, 3], [5, 4, 6, 5]])
@pytest.mark.parametrize("rank", [1, 3, 16, 20])
def test_batched_products_agree_with_autograd(counts: list[int], rank: int) -> None:
    segments = _segments(counts, rank=rank)
    rows = together(segments)
    assert len(rows) == 1
    total = sum(counts)
    x, weight, dy = _random(total, INPUTS), _random(sum(PARTS), INPUTS), _random(total, sum(PARTS))
    out, downs = lora_linear(x, FrozenLinear(weight), rows)
    parts = dy.split(PARTS, dim=1)
    dx = lora_linear_backward(parts, x, FrozenLinear(weight), rows, downs)

    leaves = [x, *(t for s in segments for t in (s.pair.a_RD, *s.pair.bs_OR))]
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]
    wanted = _plain(leaves[0], weight, segments, leaves[1:])
    wanted.backward(dy)
    torch.testing.assert_close(out, wanted.detach())
    torch.testing.assert_close(dx, leaves[0].grad)
    gradients = [s.pair.gradient for s in segments]
    found = [t for g in gradients if g is not None for t in (g.a_RD, *g.bs_OR)]
    for ours, leaf in zip(found, leaves[1:], strict=True):
        torch.testing.assert_close(ours, leaf.grad + 1)  # added to the ones that were there


def test_an_adapter_that_is_not_finite_affects_no_other() -> None:
    segments = _segments([2, 3, 2, 2])
    segments[1].pair.a_RD.fill_(float("nan"))
    x, weight, dy = _random(9, INPUTS), _random(sum(PARTS), INPUTS), _random(9, sum(PARTS))
    rows = together(segments)
    assert len(rows) == 1
    out, downs = lora_linear(x, FrozenLinear(weight), rows)
    dx = lora_linear_backward(dy.split(PARTS, dim=1), x, FrozenLinear(weight), rows, downs)
    for found in (out, dx):
        assert found[:2].isfinite().all()
        assert found[2:5].isnan().all()
        assert found[5:].isfinite().all()
    for segment in (segments[0], *segments[2:]):
        assert segment.pair.gradient is not None
        assert segment.pair.gradient.a_RD.isfinite().all()
        assert all(b_OR.isfinite().all() for b_OR in segment.pair.gradient.bs_OR)


def test_adapters_that_are_not_trained_pass_the_gradient_on() -> None:
    trained = _segments([1, 1, 1, 1])
    frozen = [replace(each, pair=replace(each.pair, gradient=None)) for each in trained]
    x, linear, dy = _random(4, INPUTS), FrozenLinear(_random(6, INPUTS)), _random(4, 6)
    found = []
    for segments in (trained, frozen):
        rows = together(segments)
        assert len(rows) == 1
        _, downs = lora_linear(x, linear, rows)
        found.append(lora_linear_backward(dy.split(PARTS, dim=1), x, linear, rows, downs))
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize(
    ("why", "segments"),
    [
        ("ranks", [*_segments([2] * 3, rank=2), Segment(6, 8, _pair(rank=3))]),
        ("scales", [*_segments([2] * 3), Segment(6, 8, _pair(scale=2.0))]),
        ("rows of the base between", [*_segments([2] * 3), Segment(7, 9, _pair())]),
        ("many rows", _segments([129] * 4)),
        ("mostly zeros", _segments([100, 1, 1, 1])),
        ("large matrices", _segments([2] * 4, rank=40, inputs=4000)),
        ("one not trained", [*_segments([2] * 3), Segment(6, 8, replace(_pair(), gradient=None))]),
        ("too few", _segments([2, 2, 2])),
    ],
)
def test_what_is_not_alike_stays_apart(why: str, segments: list[Segment]) -> None:
    assert together(segments) == segments, why


def test_nothing_and_one_are_left_as_they_are() -> None:
    (one,) = _segments([3])
    assert together([]) == []
    assert together([one]) == [one]


@pytest.mark.parametrize("lengths", [[9, 9, 9, 9], [5, 14, 9, 8]])
def test_tenants_of_one_rank_get_the_oracles_gradients(lengths, tiny, tmp_path) -> None:
    engine = TorchEngine(EngineOptions(models={"tiny": str(tiny)}))
    requests = []
    for n, length in enumerate(lengths):
        engine.create_adapter(f"a{n}", "tiny", LoraSpec(rank=4, seed=n))
        warm_up(engine, f"a{n}")
        engine.save_adapter(f"a{n}", tmp_path / f"w{n}")
        requests.append(TrainRequest(adapter_id=f"a{n}", data=[sft_datum(length, n)]))
    results = engine.forward_backward(requests)
    for n, (request, result) in enumerate(zip(requests, results, strict=True)):
        oracle = Oracle(tiny, tmp_path / f"w{n}")
        loss = oracle.loss("cross_entropy", list(request.data))
        loss.backward()
        assert result.metrics["loss:sum"] == pytest.approx(float(loss.detach()), rel=1e-5)
        engine.save_adapter(f"a{n}", tmp_path / f"g{n}", "all")
        assert_same(saved_gradients(tmp_path / f"g{n}"), oracle.gradients(), rtol=1e-4)
