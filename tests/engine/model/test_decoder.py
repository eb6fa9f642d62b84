"""The forward pass of every shape gives transformers' logprobs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.engine.conftest import SHAPES
from tests.engine.oracle import Oracle
from tests.engine.work import sft_datum, train
from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.engine.errors import EngineUserError
from tinkex.engine.interface import LoraSpec
from tinkex.engine.model.config import NotLean, parse_config
from tinkex.engine.options import EngineOptions
from tinkex.engine.torch_engine import TorchEngine

LENGTHS = (30, 7, 7, 1, 19)


@pytest.mark.parametrize("shape", SHAPES)
def test_logprobs_of_packed_sequences_are_those_of_transformers(shape, model_folder) -> None:
    folder = model_folder(shape)
    engine = TorchEngine(EngineOptions(models={"tiny": str(folder)}))
    engine.create_adapter("a", "tiny", LoraSpec(rank=2))
    data = [sft_datum(length, seed) for seed, length in enumerate(LENGTHS)]

    result = train(engine, "a", data)

    oracle = Oracle(folder)
    with torch.no_grad():
        for datum, logprobs in zip(data, result.logprobs, strict=True):
            np.testing.assert_allclose(logprobs, oracle.target_logprobs(datum), atol=2e-5)
        assert result.metrics["loss:sum"] == pytest.approx(
            float(oracle.loss("cross_entropy", data)), rel=1e-5
        )


@pytest.mark.parametrize(
    "overrides",
    [
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"attention_bias": True, "mlp_bias": True},
        {"num_key_value_heads": 6},
        {"head_dim": 12},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "rope_theta": None},
    ],
    ids=lambda value: next(iter(value)),
)
def test_config_variants_of_llama_match_transformers(overrides, tmp_path) -> None:
    folder = make_tiny_model(tmp_path / "m", "llama", **{"rope_scaling": None, **overrides})
    if overrides.get("attention_bias"):
        _add_biases(folder)
    engine = TorchEngine(EngineOptions(models={"tiny": str(folder)}))
    engine.create_adapter("a", "tiny", LoraSpec(rank=1))
    datum = sft_datum(40)
    ours = train(engine, "a", [datum]).logprobs[0]
    with torch.no_grad():
        np.testing.assert_allclose(ours, Oracle(folder).target_logprobs(datum), atol=2e-5)


def test_qwen_sliding_window_layers_match_transformers(tmp_path) -> None:
    folder = make_tiny_model(
        tmp_path / "m",
        "qwen3",
        use_sliding_window=True,
        sliding_window=8,
        max_window_layers=1,
        layer_types=["full_attention", "sliding_attention"],
    )
    engine = TorchEngine(EngineOptions(models={"tiny": str(folder)}))
    engine.create_adapter("a", "tiny", LoraSpec(rank=1))
    datum = sft_datum(40)
    ours = train(engine, "a", [datum]).logprobs[0]
    with torch.no_grad():
        np.testing.assert_allclose(ours, Oracle(folder).target_logprobs(datum), atol=2e-5)


def test_sharded_weights_load_like_whole_ones(tiny, tmp_path) -> None:
    whole = load_file(tiny / "model.safetensors")
    sharded = make_tiny_model(tmp_path / "m", "smollm")
    (sharded / "model.safetensors").unlink()
    names = sorted(whole)
    shards = {"one.safetensors": names[::2], "two.safetensors": names[1::2]}
    for file, some in shards.items():
        save_file({name: whole[name] for name in some}, sharded / file)
    weight_map = {name: file for file, some in shards.items() for name in some}
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    scores = []
    for folder in (tiny, sharded):
        engine = TorchEngine(EngineOptions(models={"tiny": str(folder)}))
        engine.create_adapter("a", "tiny", LoraSpec(rank=1))
        scores.append(train(engine, "a", [sft_datum(12)]).logprobs[0])
    np.testing.assert_array_equal(*scores)


def test_names_of_one_folder_share_one_base_in_memory(tiny) -> None:
    engine = TorchEngine(EngineOptions(models={"one": str(tiny), "two": str(tiny)}))
    assert [info.name for info in engine.models()] == ["one", "two"]
    assert engine._base("one") is engine._base("two")


def test_incomplete_model_folder_is_named(tmp_path) -> None:
    folder = make_tiny_model(tmp_path / "m", "smollm")
    (folder / "model.safetensors").unlink()
    with pytest.raises(EngineUserError, match=r"lacks model\.safetensors"):
        TorchEngine(EngineOptions(models={"tiny": str(folder)}))


def test_folder_without_a_model_is_named(tmp_path) -> None:
    with pytest.raises(EngineUserError, match=r"no config\.json"):
        TorchEngine(EngineOptions(models={"tiny": str(tmp_path)}))


def test_other_architectures_are_left_to_transformers() -> None:
    config = {"num_hidden_layers": 1, "num_attention_heads": 1}
    found = parse_config({"model_type": "gpt2", **config})
    assert isinstance(found, NotLean)
    assert "model_type='gpt2'" in found.reason
    yarn = {"rope_type": "yarn", "factor": 2.0}
    found = parse_config({"model_type": "llama", "rope_scaling": yarn, **config})
    assert found == NotLean("its rotary positions are of the kind 'yarn'")


def test_tiny_tokenizer_gives_back_any_text(tiny) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tiny / "tokenizer.json"))
    text = "héllo\n\t世界 123<|im_end|>"
    ids = tokenizer.encode(text).ids
    assert ids[-1] == 258
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def _add_biases(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    torch.manual_seed(0)
    for name in [n for n in tensors if n.endswith("_proj.weight")]:
        tensors[name.replace(".weight", ".bias")] = torch.randn(tensors[name].shape[0])
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
