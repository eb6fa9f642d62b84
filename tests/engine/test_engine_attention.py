"""Attention in blocks against torch's own, forward and backward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tinkex.engine.attention import PackedAttention

HEADS, KEY_HEADS, WIDTH = 6, 2, 8


def _plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> torch.Tensor:
    """One sequence, by the formula."""
    length = q.shape[0]
    distance = torch.arange(length)[:, None] - torch.arange(length)
    is_seen = (distance >= 0) & ((distance < window) | (window == 0))
    k, v = (x.repeat_interleave(HEADS // KEY_HEADS, 1) for x in (k, v))
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), attn_mask=is_seen
    )
    return out.transpose(0, 1).reshape(length, -1)


@pytest.mark.parametrize("window", [0, 5, 70])
@pytest.mark.parametrize("lengths", [[1], [64], [65, 65], [200, 130, 130, 3]])
def test_blocks_follow_the_formula(lengths: list[int], window: int) -> None:
    torch.manual_seed(sum(lengths))
    num_tokens = sum(lengths)
    q = torch.randn(num_tokens, HEADS, WIDTH, dtype=torch.float64, requires_grad=True)
    k, v = (
        torch.randn(num_tokens, KEY_HEADS, WIDTH, dtype=torch.float64, requires_grad=True)
        for _ in range(2)
    )
    parts = zip(*(x.split(lengths) for x in (q, k, v)), strict=True)
    wanted = torch.cat([_plain(*part, window) for part in parts])
    dout = torch.randn_like(wanted)
    gradients = torch.autograd.grad(wanted, (q, k, v), dout)
    attention = PackedAttention(lengths)
    with torch.no_grad():
        torch.testing.assert_close(attention.attend(0, q, k, v, window), wanted)
        torch.testing.assert_close(tuple(attention.backward(dout, q, k, v, window)), gradients)
