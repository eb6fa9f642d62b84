"""The hand-written backwards against autograd over the plain formulas, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from tinkex.engine.lora.linear import LoraPair, Segment, lora_linear, lora_linear_backward
from tinkex.engine.ops.layer_ops import (
    ACTIVATIONS,
    apply_rope,
    rms_norm,
    rms_norm_backward,
    rms_scaled,
    rms_unit,
)
from tinkex.engine.ops.linear import FrozenLinear


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def _gradients(
    function: Callable[..., torch.Tensor], dy: torch.Tensor, *inputs: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    leaves = [x.detach().requires_grad_(True) for x in inputs]
    return torch.autograd.grad(function(*leaves), leaves, dy)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def _pair(rank: int, scale: float) -> LoraPair:
    """On two matrices of 4 and 2 outputs fused on 5 inputs, with room for its gradient."""
    shapes = [(2 * rank, 5), (4, rank), (2, rank)]
    weights, slots = ([make(*s) for s in shapes] for make in (_random, _ones))
    return LoraPair(
        weights[0], tuple(weights[1:]), scale, LoraPair(slots[0], tuple(slots[1:]), scale)
    )


def _ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, dtype=torch.float64)


def _change(x: torch.Tensor, scale: float, a: torch.Tensor, *bs: torch.Tensor) -> torch.Tensor:
    halves = zip(a.chunk(2), bs, strict=True)
    return scale * torch.cat([x @ half.T @ b.T for half, b in halves], dim=1)


def test_lora_linear_of_two_adapters_and_rows_of_the_base() -> None:
    x, weight, bias, plus, dy = (_random(*s) for s in [(7, 5), (6, 5), (6,), (7, 6), (7, 6)])
    first, second = _pair(2, 0.5), _pair(3, 2.0)
    segments = [Segment(0, 3, first), Segment(5, 7, second)]
    linear = FrozenLinear(weight, bias)

    def plain(x, a1, b11, b12, a2, b21, b22):
        changes = [_change(x[:3], 0.5, a1, b11, b12), torch.zeros_like(plus[3:5])]
        return (
            F.linear(x, weight, bias)
            + plus
            + torch.cat([*changes, _change(x[5:], 2.0, a2, b21, b22)])
        )

    inputs = [x, first.a_RD, *first.bs_OR, second.a_RD, *second.bs_OR]
    out, downs = lora_linear(x, linear, segments, plus)
    torch.testing.assert_close(out, plain(*inputs))
    dx = lora_linear_backward(dy.split([4, 2], dim=1), x, linear, segments, downs)
    wanted = _gradients(plain, dy, *inputs)
    torch.testing.assert_close(dx, wanted[0])
    found = [g for pair in (first, second) for g in (pair.gradient.a_RD, *pair.gradient.bs_OR)]
    for ours, theirs in zip(found, wanted[1:], strict=True):
        torch.testing.assert_close(ours, theirs + 1)  # added to the ones that were there


def test_an_adapter_that_is_not_trained_still_passes_the_gradient_on() -> None:
    x, dy = _random(3, 5), _random(3, 6)
    trained = _pair(2, 0.5)
    frozen = LoraPair(trained.a_RD, trained.bs_OR, trained.scale)
    linear = FrozenLinear(_random(6, 5))
    parts = dy.split([4, 2], dim=1)
    found = []
    for pair in (trained, frozen):
        segments = [Segment(0, 3, pair)]
        _, downs = lora_linear(x, linear, segments)
        found.append(lora_linear_backward(parts, x, linear, segments, downs))
    torch.testing.assert_close(found[0], found[1])


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize(("name", "plain"), [("silu", F.silu), ("gelu_tanh", _gelu_tanh)])
def test_gated_activations(name: str, plain: Callable[..., torch.Tensor]) -> None:
    gate, up, dy = _random(3, 4), _random(3, 4), _random(3, 4)
    activation = ACTIVATIONS[name]
    torch.testing.assert_close(activation.forward(gate, up), plain(gate) * up)
    wanted = _gradients(lambda g, u: plain(g) * u, dy, gate, up)
    found = activation.backward(dy, gate, up, activation.function(gate))
    torch.testing.assert_close(found, wanted)


def test_rope_of_a_part_leaves_the_other_features() -> None:
    angles = _random(3, 1, 2).repeat(1, 1, 2)
    cos, sin = torch.cat([angles.cos(), _ones(3, 1, 4)], dim=-1), angles.sin()
    x, dy = _random(3, 2, 8), _random(3, 2, 8)
    turned = apply_rope(x, cos, sin)
    torch.testing.assert_close(turned[..., 4:], x[..., 4:])
    torch.testing.assert_close(turned[..., :4], apply_rope(x[..., :4], angles.cos(), sin))
    (wanted,) = _gradients(lambda x: apply_rope(x, cos, sin), dy, x)
    torch.testing.assert_close(apply_rope(dy, cos, -sin), wanted)


def test_the_backward_of_rope_is_the_inverse_rotation() -> None:
    angles = _random(3, 1, 2).repeat(1, 1, 2)
    cos, sin = angles.cos(), angles.sin()
    x, dy = _random(3, 2, 4), _random(3, 2, 4)
    turned = apply_rope(x, cos, sin)
    torch.testing.assert_close(turned[..., 0], x[..., 0] * cos[..., 0] - x[..., 2] * sin[..., 0])
    torch.testing.assert_close(apply_rope(turned, cos, -sin), x)
    (wanted,) = _gradients(lambda x: apply_rope(x, cos, sin), dy, x)
    torch.testing.assert_close(apply_rope(dy, cos, -sin), wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rms_norm_follows_autograd(dtype: torch.dtype) -> None:
    x, dy, plus = (torch.randn(4, 6, dtype=dtype) for _ in range(3))
    weight = torch.rand(6, dtype=dtype) + 0.5
    normed, inverse = rms_norm(x, weight, 1e-5)
    torch.testing.assert_close(normed, F.rms_norm(x, (6,), weight, 1e-5))
    (wanted,) = _gradients(lambda x: F.rms_norm(x, (6,), weight, 1e-5), dy, x)
    unit = rms_unit(x, inverse)
    found = rms_norm_backward(dy.clone(), unit, inverse, weight, plus)
    torch.testing.assert_close(found, wanted + plus)
    torch.testing.assert_close(rms_norm_backward(dy, unit, inverse, weight), wanted)


def test_a_wide_norm_weight_is_applied_before_rounding() -> None:
    x, weight = torch.randn(50, 64, dtype=torch.bfloat16), torch.rand(64) + 0.5
    found, inverse = rms_norm(x, weight, 1e-5)
    wide = F.rms_norm(x.float(), (64,), eps=1e-5)
    assert torch.equal(found, (wide * weight).to(torch.bfloat16))
    assert torch.equal(found, rms_scaled(rms_unit(x, inverse), weight, torch.bfloat16))
    assert not torch.equal(found, wide.to(torch.bfloat16) * weight.to(torch.bfloat16))
