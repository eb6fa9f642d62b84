"""The hand-written backwards against numerical derivatives, in float64."""

from __future__ import annotations

import pytest
import torch

from tinkex.engine.linear import FrozenLinear
from tinkex.engine.ops import LoraPair, Segment, apply_rope, lora_linear, rms_norm, swiglu


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def _leaf(*shape: int) -> torch.Tensor:
    return _random(*shape).requires_grad_(True)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_lora_linear_of_two_adapters_and_rows_of_the_base() -> None:
    x, weight, bias = _leaf(7, 5), _random(6, 5), _random(6)
    a1, b11, b12 = _leaf(4, 5), _leaf(4, 2), _leaf(2, 2)
    a2, b21, b22 = _leaf(6, 5), _leaf(4, 3), _leaf(2, 3)

    def run(x, a1, b11, b12, a2, b21, b22):
        first = Segment(0, 3, LoraPair(a1, (b11, b12), 0.5))
        second = Segment(5, 7, LoraPair(a2, (b21, b22), 2.0))
        return lora_linear(x, FrozenLinear(weight, bias), [first, second])

    assert torch.autograd.gradcheck(run, (x, a1, b11, b12, a2, b21, b22))
    plain = torch.nn.functional.linear(x, weight, bias)
    out = run(x, a1, b11, b12, a2, b21, b22)
    torch.testing.assert_close(out[3:5], plain[3:5])
    change = 0.5 * torch.cat([x[:3] @ a1[:2].T @ b11.T, x[:3] @ a1[2:].T @ b12.T], dim=1)
    torch.testing.assert_close(out[:3], plain[:3] + change)


def test_swiglu() -> None:
    x = _leaf(3, 8)
    assert torch.autograd.gradcheck(swiglu, (x,))
    torch.testing.assert_close(swiglu(x), torch.nn.functional.silu(x[:, :4]) * x[:, 4:])


def test_rope_turns_back_by_its_backward() -> None:
    angles = _random(3, 2).repeat(1, 2)
    cos, sin = angles.cos(), angles.sin()
    assert torch.autograd.gradcheck(lambda x: apply_rope(x, cos, sin), (_leaf(3, 2, 4),))
    x = _random(3, 2, 4)
    torch.testing.assert_close(apply_rope(apply_rope(x, cos, sin), cos, -sin), x)


def test_rms_norm_in_float32_follows_autograd() -> None:
    x = torch.randn(4, 6, requires_grad=True)
    weight, dy = torch.rand(6) + 0.5, torch.randn(4, 6)
    (ours,) = torch.autograd.grad(rms_norm(x, weight, 1e-5), x, dy)
    plain = torch.nn.functional.rms_norm(x, (6,), weight, 1e-5)
    (theirs,) = torch.autograd.grad(plain, x, dy)
    torch.testing.assert_close(rms_norm(x, weight, 1e-5), plain)
    torch.testing.assert_close(ours, theirs)
