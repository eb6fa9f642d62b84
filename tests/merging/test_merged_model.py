"""Merged models against the engine that trained the adapter, and against transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.engine.conftest import SHAPES, model_folder
from tests.engine.oracle import Oracle
from tests.engine.work import sft_datum, train, warm_up
from tinkex.engine.interface import LoraSpec
from tinkex.engine.options import EngineOptions
from tinkex.engine.torch_engine import TorchEngine
from tinkex.merging.errors import NotMergeableError
from tinkex.merging.merged_model import merged_model
from tinkex.merging.numbers import decoded, encoded

__all__ = ["model_folder"]

Folders = Callable[[str], Path]


def adapter_of(base: Path, folder: Path, spec: LoraSpec) -> np.ndarray:
    """The folder, now holding a trained adapter; what the engine scores with it."""
    engine = TorchEngine(EngineOptions(models={"m": str(base)}))
    engine.create_adapter("a", "m", spec)
    warm_up(engine, "a")
    engine.save_adapter("a", folder)
    return train(engine, "a", [sft_datum(30)]).logprobs[0]


def write(base: Path, adapter: Path, goal: Path) -> Path:
    """The merged model on disk; every file is as long as it was said to be."""
    goal.mkdir()
    for file in merged_model(base, adapter):
        (goal / file.name).write_bytes(b"".join(file.chunks()))
        assert (goal / file.name).stat().st_size == file.size, file.name
    return goal


@pytest.mark.parametrize("shape", SHAPES)
def test_transformers_scores_a_merged_model_as_the_engine_scored_the_adapter(
    shape: str, model_folder: Folders, tmp_path: Path
) -> None:
    base = model_folder(shape)
    expected = adapter_of(base, tmp_path / "adapter", LoraSpec(rank=3, alpha=7.0))
    merged = write(base, tmp_path / "adapter", tmp_path / "merged")
    with torch.no_grad():
        found = Oracle(merged).target_logprobs(sft_datum(30)).numpy()
        before = Oracle(base).target_logprobs(sft_datum(30)).numpy()
    np.testing.assert_allclose(found, expected, atol=2e-4)
    assert np.abs(before - expected).max() > 0.05, "the adapter changes what is compared"


def test_a_tied_head_is_changed_and_the_embedding_is_not(
    model_folder: Folders, tmp_path: Path
) -> None:
    base = model_folder("smollm")
    adapter_of(base, tmp_path / "adapter", LoraSpec(rank=2, train_attn=False, train_mlp=False))
    merged = write(base, tmp_path / "adapter", tmp_path / "merged")
    before = load_file(base / "model.safetensors")
    after = load_file(merged / "model.safetensors")
    assert after.keys() - before.keys() == {"lm_head.weight"}
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert not torch.equal(after["lm_head.weight"], before["model.embed_tokens.weight"])
    assert json.loads((merged / "config.json").read_text())["tie_word_embeddings"] is False
    assert (merged / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()
    assert not (merged / "tinkex_files.json").exists(), "its hashes are those of the base"


def test_a_tied_model_stays_tied_without_a_change_of_its_head(
    model_folder: Folders, tmp_path: Path
) -> None:
    base = model_folder("smollm")
    adapter_of(base, tmp_path / "adapter", LoraSpec(rank=2, train_unembed=False))
    merged = write(base, tmp_path / "adapter", tmp_path / "merged")
    assert json.loads((merged / "config.json").read_text())["tie_word_embeddings"] is True
    assert "lm_head.weight" not in load_file(merged / "model.safetensors")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_shards_of_half_precision_stay_what_they_are(
    dtype: torch.dtype, model_folder: Folders, tmp_path: Path
) -> None:
    whole = model_folder("smollm")
    base = tmp_path / "base"
    shutil.copytree(whole, base, ignore=shutil.ignore_patterns("*.safetensors"))
    tensors = {n: t.to(dtype) for n, t in load_file(whole / "model.safetensors").items()}
    names = sorted(tensors)
    parts = {"one.safetensors": names[::2], "two.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: tensors[name] for name in part}, base / file, {"format": "pt"})
    weight_map = {name: file for file, part in parts.items() for name in part}
    (base / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    adapter_of(base, tmp_path / "adapter", LoraSpec(rank=2))
    merged = write(base, tmp_path / "adapter", tmp_path / "merged")
    index = json.loads((merged / "model.safetensors.index.json").read_text())["weight_map"]
    assert index == {
        **weight_map,
        "lm_head.weight": weight_map["model.embed_tokens.weight"],
    }
    adapter = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    for name, file in index.items():
        found = load_file(merged / file)[name]
        source = tensors[name if name in tensors else "model.embed_tokens.weight"]
        assert found.dtype == dtype
        pair = [
            adapter.get(f"base_model.model.{name.removesuffix('.weight')}.lora_{part}.weight")
            for part in "AB"
        ]
        if pair[0] is None:
            assert torch.equal(found, source)
        else:
            exact = source.double() + 16.0 * (pair[1].double() @ pair[0].double())  # alpha / rank
            torch.testing.assert_close(found.double(), exact, rtol=2**-7, atol=1e-4)
            assert not torch.equal(found, source)


def test_bfloat16_is_rounded_as_torch_rounds_it() -> None:
    numbers = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    odd = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, 1e-45, 1.00390625], np.float32)
    numbers = np.concatenate([numbers, odd])
    ours = torch.frombuffer(bytearray(encoded(numbers, "BF16")), dtype=torch.bfloat16)
    theirs = torch.from_numpy(numbers).to(torch.bfloat16)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    again = decoded(encoded(numbers, "BF16"), "BF16")
    np.testing.assert_array_equal(again, theirs.float().numpy())


def test_what_does_not_fit_is_refused_before_the_first_byte(
    model_folder: Folders, tmp_path: Path
) -> None:
    adapter = tmp_path / "adapter"
    adapter_of(model_folder("smollm"), adapter, LoraSpec(rank=2))
    with pytest.raises(NotMergeableError, match="has the shape"):
        merged_model(model_folder("gemma3"), adapter)
    base = tmp_path / "base"
    shutil.copytree(model_folder("smollm"), base)
    tensors = load_file(base / "model.safetensors")
    quantized = {name: tensor.to(torch.int8) for name, tensor in tensors.items()}
    save_file(quantized, base / "model.safetensors")
    with pytest.raises(NotMergeableError, match="type I8"):
        merged_model(base, adapter)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, base / "model.safetensors")
    with pytest.raises(NotMergeableError, match=r"no weight for 'model\.layers\.1\.mlp\.up_proj'"):
        merged_model(base, adapter)
    (base / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(NotMergeableError, match="cannot be read"):
        merged_model(base, adapter)
    (base / "model.safetensors").unlink()
    with pytest.raises(NotMergeableError, match="cannot be read"):
        merged_model(base, adapter)
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.safetensors.age")
    with pytest.raises(NotMergeableError, match="no plain adapter"):
        merged_model(model_folder("smollm"), adapter)
