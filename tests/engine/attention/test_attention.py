"""Attention against the formula, forward and backward, in padded groups and by torch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tinkex.engine.attention import training as training
from tinkex.engine.attention.cpu import pack_sequences
from tinkex.engine.attention.packed import PackedAttention, attend_by_torch
from tinkex.engine.attention.training import TrainingAttention, training_attention
from tinkex.engine.ops.layer_ops import Angles, apply_rope

HEADS, KEY_HEADS, WIDTH = 6, 2, 8
SCALE = WIDTH**-0.5
LENGTHS = [
    [1],
    [64],
    [65, 65],
    [9, 1, 33, 2, 2, 17, 5],
    [200, 130, 130, 3],
    [3, 130, 64, 64, 1, 300, 130],
    [700, 2, 2],
]

Make = Callable[[list[int], list[Angles], float], TrainingAttention]
KINDS: dict[str, Make] = {
    "probabilities kept": training_attention,
    "probabilities computed again": lambda *batch: training_attention(*batch, 0),
    "some kept": lambda *batch: training_attention(*batch, 3 * 64 * 64 * 64),
    "by torch": training._TorchAttention,
}


def _plain(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """One sequence, by the formula."""
    length = q.shape[0]
    distance = torch.arange(length)[:, None] - torch.arange(length)
    is_visible = (distance >= 0) & ((distance < window) | (window == 0))
    k, v = (x.repeat_interleave(HEADS // KEY_HEADS, 1) for x in (k, v))
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), attn_mask=is_visible
    )
    return out.transpose(0, 1).reshape(length, -1)


def _packed(q: Tensor, k: Tensor, v: Tensor, lengths: list[int], window: int) -> Tensor:
    parts = zip(*(x.split(lengths) for x in (q, k, v)), strict=True)
    return torch.cat([_plain(*part, window) for part in parts])


def _draw(num_tokens: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Angles]:
    """Queries and keys side by side, values, and angles."""
    torch.manual_seed(num_tokens)
    qk = torch.randn(num_tokens, HEADS + KEY_HEADS, WIDTH, dtype=dtype)
    v = torch.randn(num_tokens, KEY_HEADS, WIDTH, dtype=dtype)
    half = torch.rand(num_tokens, 1, WIDTH // 2, dtype=dtype).repeat(1, 1, 2)
    return qk, v, Angles(half.cos(), half.sin())


@pytest.mark.parametrize("window", [0, 5, 70])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_the_output_follows_the_formula(lengths: list[int], window: int) -> None:
    qk, v, _ = _draw(sum(lengths))
    q, k = qk[:, :HEADS], qk[:, HEADS:]
    wanted = _packed(q, k, v, lengths, window)
    torch.testing.assert_close(PackedAttention(lengths).attend(0, q, k, v, window), wanted)
    torch.testing.assert_close(attend_by_torch(q, k, v, lengths, window), wanted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [0, 5, 70])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_a_training_pass_follows_the_formula(lengths: list[int], window: int, kind: str) -> None:
    qk, v, angles = _draw(sum(lengths))
    qk.requires_grad_(True)
    v.requires_grad_(True)
    rotated = apply_rope(qk, *angles)
    wanted = _packed(rotated[:, :HEADS], rotated[:, HEADS:], v, lengths, window)
    dout = torch.randn_like(wanted)
    dqk, dv = torch.autograd.grad(wanted, (qk, v), dout)
    attention = KINDS[kind](lengths, [angles], SCALE)
    with torch.no_grad():
        out, tape = attention.forward(qk, v, window)
        found = attention.backward(dout, tape, window)
    torch.testing.assert_close(out, wanted)
    torch.testing.assert_close(found, training.Gradients(dqk[:, :HEADS], dqk[:, HEADS:], dv))


@pytest.mark.parametrize("kind", KINDS)
def test_layers_have_their_own_angles_and_any_scale(kind: str) -> None:
    lengths, scale = [9, 70, 1], 0.7
    qk, v, first = _draw(sum(lengths))
    half = torch.rand(sum(lengths), 1, WIDTH // 2, dtype=torch.float64).repeat(1, 1, 2)
    second = Angles(half.cos(), half.sin())
    attention = KINDS[kind](lengths, [first, second], scale)
    for rope, angles in enumerate((first, second)):
        leaf = qk.clone().requires_grad_(True)
        rotated = apply_rope(leaf, *angles)
        q = rotated[:, :HEADS] * (scale / SCALE)
        wanted = _packed(q, rotated[:, HEADS:], v, lengths, 5)
        dout = torch.randn_like(wanted)
        (dqk,) = torch.autograd.grad(wanted, (leaf,), dout)
        with torch.no_grad():
            out, tape = attention.forward(qk, v, 5, rope)
            found = attention.backward(dout, tape, 5, rope)
        torch.testing.assert_close(out, wanted)
        torch.testing.assert_close(torch.cat(found[:2], dim=1), dqk)


def test_a_sequence_does_not_depend_on_the_others() -> None:
    """To the last bit, and also where another one's numbers are not finite."""
    lengths = [130, 70, 70, 300, 5]
    qk, v, angles = _draw(sum(lengths), torch.float32)
    v[200:270] = torch.nan
    qk[270:570] = torch.inf
    dout = torch.randn(sum(lengths), HEADS * WIDTH)
    together = training_attention(lengths, [angles], SCALE)
    out, tape = together.forward(qk, v, 0)
    found = together.backward(dout, tape, 0)
    for start, length in ((0, 130), (130, 70), (570, 5)):
        rows = slice(start, start + length)
        alone = training_attention([length], [Angles(*(x[rows] for x in angles))], SCALE)
        out_alone, tape = alone.forward(qk[rows], v[rows], 0)
        assert torch.equal(out[rows], out_alone)
        for one, same in zip(alone.backward(dout[rows], tape, 0), found, strict=True):
            assert torch.equal(one, same[rows])


def test_padded_groups_hold_every_token_once_and_are_not_much_larger() -> None:
    lengths = [500, 3, 480, 3, 64, 65, 2000, 2, *[10] * 40, *[1] * 30, 7, 33]
    groups = pack_sequences(lengths)
    rows = sorted((run.rows.start, run.rows.stop) for group in groups for run in group.runs)
    assert rows[0][0] == 0
    assert rows[-1][1] == sum(lengths)
    assert all(before[1] == after[0] for before, after in pairwise(rows))
    for group in groups:
        num_tokens = sum(run.rows.stop - run.rows.start for run in group.runs)
        assert group.new(torch.empty(1), 1, 1).numel() <= 4 * num_tokens
