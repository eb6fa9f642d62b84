"""The frozen product: every way it can be computed gives the same numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from tinkex.engine.lora.adapter import LoraBatch
from tinkex.engine.model.config import parse_config, read_json
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.model.hf_weights import load_decoder
from tinkex.engine.model.spec import DecoderSpec
from tinkex.engine.ops.linear import FrozenLinear


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("rows", [0, 1, 3, 70])
@pytest.mark.parametrize("has_bias", [False, True])
def test_plain_packed_and_torch_agree(rows: int, has_bias: bool) -> None:
    weight, x = torch.randn(48, 40), torch.randn(rows, 40)
    bias = torch.randn(48) if has_bias else None
    plain = FrozenLinear(weight, bias)
    wanted = F.linear(x, weight, bias)
    torch.testing.assert_close(plain.forward(x), wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(plain.packed().forward(x), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_backward_is_the_product_with_the_weight(dtype: torch.dtype) -> None:
    weight, dy = torch.randn(48, 40, dtype=dtype), torch.randn(9, 48, dtype=dtype)
    for linear in (FrozenLinear(weight), FrozenLinear(weight).packed()):
        torch.testing.assert_close(linear.backward([dy]), dy @ weight, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_backward_of_parts_that_lie_side_by_side(dtype: torch.dtype) -> None:
    weight, dy = torch.randn(48, 40, dtype=dtype), torch.randn(9, 48, dtype=dtype)
    parts = [dy[:, :32].contiguous(), dy[:, 32:40].contiguous(), dy[:, 40:].contiguous()]
    found = FrozenLinear(weight).backward(parts)
    torch.testing.assert_close(found, dy @ weight, rtol=1e-5, atol=1e-4)


def test_a_transposed_weight_and_rows_cut_out_of_a_wider_tensor() -> None:
    weight, x = torch.randn(40, 48), torch.randn(9, 100)[:, 30:70]
    linear = FrozenLinear(weight.T)
    torch.testing.assert_close(linear.forward(x), x @ weight, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(linear.packed().forward(x), x @ weight, rtol=1e-5, atol=1e-5)


def test_only_float32_on_a_cpu_is_packed() -> None:
    half = FrozenLinear(torch.randn(8, 8, dtype=torch.bfloat16))
    assert half.packed() is half
    full = FrozenLinear(torch.randn(8, 8))
    assert (full.packed() is not full) == torch.backends.mkldnn.is_available()
    again = full.packed()
    assert again.packed() is again


def test_a_decoder_for_few_rows_computes_the_same(tiny: Path) -> None:
    decoder = _load(tiny)
    tokens = torch.randint(0, 256, (12,))
    few = decoder.with_packed_weights()
    assert few.weights.embed_VD is decoder.weights.embed_VD
    states = [
        model.forward_hidden(tokens, [12], LoraBatch([(12, None)])) for model in (decoder, few)
    ]
    torch.testing.assert_close(states[0], states[1], rtol=1e-5, atol=1e-5)
    logits = [model.head.forward(states[0]) for model in (decoder, few)]
    torch.testing.assert_close(logits[0], logits[1], rtol=1e-5, atol=1e-5)


def _load(folder: Path) -> Decoder:
    config = parse_config(read_json(folder / "config.json"))
    assert isinstance(config, DecoderSpec)
    return load_decoder(folder, config, torch.device("cpu"), torch.float32)
