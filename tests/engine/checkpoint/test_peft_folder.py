"""Adapters on disk: bit-exact round trips, peft parity, and folders that are whole or absent."""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import peft
import pytest
import torch
import transformers

from tests.engine.conftest import SHAPES
from tests.engine.oracle import Oracle, saved_weights
from tests.engine.work import optim, run_samples, sample_request, sft_datum, tokens, train, warm_up
from tinkex.engine import torch_engine
from tinkex.engine.errors import EngineUserError
from tinkex.engine.interface import LoraSpec
from tinkex.engine.options import EngineOptions
from tinkex.engine.torch_engine import TorchEngine
from tinkex.files.atomic_folder import folder_size_bytes, write_folder
from tinkex.files.errors import StorageError

STATE_FILES = ("adapter_model.safetensors", "optimizer.safetensors", "gradients.safetensors")


def _same_files(one: Path, other: Path, names: tuple[str, ...] = STATE_FILES) -> bool:
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in names)


@pytest.mark.parametrize("shape", SHAPES)
def test_saved_adapter_gives_the_same_logprobs_in_peft(shape, model_folder, tmp_path) -> None:
    folder = model_folder(shape)
    engine = TorchEngine(EngineOptions(models={"tiny": str(folder)}))
    engine.create_adapter("a", "tiny", LoraSpec(rank=4))
    warm_up(engine, "a")
    engine.save_adapter("a", tmp_path / "a")
    engine.snapshot("a", "s")
    prompt = tokens(30)
    request = sample_request(sampler_id="s", tokens=prompt, max_tokens=1, prompt_logprobs=True)
    ours = run_samples(engine, request)["r"].prompt_logprobs[1:]
    with torch.no_grad():
        theirs = Oracle(folder, tmp_path / "a").all_logprobs(prompt)
        base = Oracle(folder).all_logprobs(prompt)
    rows = np.arange(29)
    np.testing.assert_allclose(ours, theirs[rows, prompt[1:]], atol=1e-4)
    assert float((theirs - base).abs().max()) > 0.1


def test_head_lora_of_tied_embeddings_survives_an_untied_merge(engine, tiny, tmp_path) -> None:
    engine.create_adapter("a", "tiny", LoraSpec(rank=4))
    warm_up(engine, "a")
    engine.save_adapter("a", tmp_path / "a")
    base = transformers.AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    embedding = base.get_input_embeddings().weight.detach().clone()
    base.lm_head.weight = torch.nn.Parameter(embedding.clone())  # untie
    base.config.tie_word_embeddings = False
    merged = peft.PeftModel.from_pretrained(base, tmp_path / "a").merge_and_unload()
    assert torch.equal(merged.get_input_embeddings().weight, embedding)
    datum = sft_datum(20)
    ours = train(engine, "a", [datum]).logprobs[0]
    with torch.no_grad():
        logits = merged(torch.tensor(datum.tokens)[None]).logits[0].log_softmax(-1)
    theirs = logits[np.arange(20), datum.inputs["target_tokens"]]
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_complete_state_goes_on_bit_for_bit(engine, tmp_path) -> None:
    engine.create_adapter("a", "tiny", LoraSpec(rank=4, seed=9))
    warm_up(engine, "a")
    train(engine, "a", [sft_datum(10)])
    engine.save_adapter("a", tmp_path / "mid", "all")
    info = engine.load_adapter("b", "tiny", tmp_path / "mid", "all")
    assert (info.step, info.pending_backwards) == (3, 1)
    assert info.spec == LoraSpec(rank=4, seed=9)
    for adapter_id in "ab":
        train(engine, adapter_id, [sft_datum(7)])
        optim(engine, adapter_id, learning_rate=0.01, weight_decay=0.1)
        train(engine, adapter_id, [sft_datum(8)])
        engine.save_adapter(adapter_id, tmp_path / adapter_id, "all")
    assert _same_files(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("has_room", [True, False])
def test_what_is_saved_beside_the_work_is_what_was_there_when_it_began(
    engine, tmp_path, monkeypatch, has_room
) -> None:
    engine.create_adapter("a", "tiny", LoraSpec(rank=4))
    warm_up(engine, "a")
    train(engine, "a", [sft_datum(10)])
    engine.save_adapter("a", tmp_path / "now", "all")
    if not has_room:
        monkeypatch.setattr(torch_engine, "available_bytes", lambda: 1000)
    busy = threading.Event()
    if has_room:
        engine._background.start(busy.wait)  # it is not written before the work below is done
    saved = engine.start_saving("a", tmp_path / "beside", "all")
    train(engine, "a", [sft_datum(7)])
    optim(engine, "a", learning_rate=0.01)
    train(engine, "a", [sft_datum(8)])
    assert saved.done() is not has_room
    busy.set()
    assert saved.result(20) == folder_size_bytes(tmp_path / "beside")
    assert _same_files(tmp_path / "now", tmp_path / "beside")


def test_optimizer_scope_keeps_moments_and_drops_gradients(engine, tmp_path) -> None:
    engine.create_adapter("a", "tiny", LoraSpec(rank=4))
    warm_up(engine, "a")
    engine.save_adapter("a", tmp_path / "clean", "optimizer")
    train(engine, "a", [sft_datum(10)])
    engine.save_adapter("a", tmp_path / "a", "optimizer")
    assert not (tmp_path / "a" / "gradients.safetensors").exists()
    info = engine.load_adapter("b", "tiny", tmp_path / "a", "optimizer")
    assert (info.step, info.pending_backwards) == (3, 0)
    engine.save_adapter("b", tmp_path / "b", "optimizer")
    assert _same_files(tmp_path / "clean", tmp_path / "b", STATE_FILES[:2])


def test_weights_scope_starts_the_optimizer_anew(engine, tmp_path) -> None:
    engine.create_adapter("a", "tiny", LoraSpec(rank=4))
    warm_up(engine, "a")
    engine.save_adapter("a", tmp_path / "a", "all")
    info = engine.load_adapter("a", "tiny", tmp_path / "a", "weights")
    assert (info.step, info.pending_backwards) == (0, 0)
    engine.save_adapter("a", tmp_path / "b", "all")
    assert _same_files(tmp_path / "a", tmp_path / "b", STATE_FILES[:1])
    assert not (tmp_path / "b" / "optimizer.safetensors").exists()


def test_adapter_made_by_peft_loads_and_its_alpha_counts(engine, tiny, tmp_path) -> None:
    base = transformers.AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    config = peft.LoraConfig(
        r=3, lora_alpha=5, use_rslora=True, target_modules=["q_proj", "v_proj", "down_proj"]
    )
    model = peft.get_peft_model(base, config)
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(tmp_path / "foreign")
    info = engine.load_adapter("a", "tiny", tmp_path / "foreign")
    assert info.spec == LoraSpec(rank=3, train_unembed=False)
    datum = sft_datum(20)
    with torch.no_grad():
        logits = model(torch.tensor(datum.tokens)[None]).logits[0].log_softmax(-1)
    theirs = logits[np.arange(20), datum.inputs["target_tokens"]]
    np.testing.assert_allclose(train(engine, "a", [datum]).logprobs[0], theirs, atol=1e-4)
    with pytest.raises(EngineUserError, match="without optimizer state"):
        engine.load_adapter("b", "tiny", tmp_path / "foreign", "optimizer")


def test_sampler_from_a_folder_equals_the_snapshot(engine, tmp_path) -> None:
    engine.create_adapter("a", "tiny", LoraSpec(rank=4))
    warm_up(engine, "a")
    engine.snapshot("a", "memory")
    engine.save_adapter("a", tmp_path / "a")
    engine.load_sampler("disk", "tiny", tmp_path / "a")
    scores = [
        run_samples(engine, sample_request(sampler_id=s, max_tokens=1, prompt_logprobs=True))["r"]
        for s in ("memory", "disk")
    ]
    np.testing.assert_array_equal(scores[0].prompt_logprobs, scores[1].prompt_logprobs)


def test_adapter_of_another_base_is_refused(engine, model_folder, tmp_path) -> None:
    other = TorchEngine(EngineOptions(models={"tiny": str(model_folder("qwen3"))}))
    other.create_adapter("a", "tiny", LoraSpec(rank=2))
    other.save_adapter("a", tmp_path / "a")
    with pytest.raises(EngineUserError, match="does not fit this base model"):
        engine.load_adapter("a", "tiny", tmp_path / "a")
    assert engine.adapters() == []


def test_folder_without_an_adapter_is_refused(engine, tmp_path) -> None:
    with pytest.raises(EngineUserError, match="holds no adapter"):
        engine.load_sampler("s", "tiny", tmp_path)


def test_saving_again_replaces_the_folder(engine, tmp_path) -> None:
    engine.create_adapter("a", "tiny", LoraSpec(rank=2))
    warm_up(engine, "a")
    engine.save_adapter("a", tmp_path / "a", "all")
    before = saved_weights(tmp_path / "a")
    warm_up(engine, "a")
    engine.save_adapter("a", tmp_path / "a")
    after = saved_weights(tmp_path / "a")
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert not (tmp_path / "a" / "optimizer.safetensors").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_failed_write_leaves_what_was_there(tmp_path) -> None:
    write_folder(tmp_path / "a", {"one": b"1"})

    def fail() -> Iterator[bytes]:
        yield b"half"
        raise OSError(errno.ENOSPC, "no room")

    with pytest.raises(StorageError, match="is full"):
        write_folder(tmp_path / "a", {"one": b"2", "two": fail})
    assert (tmp_path / "a" / "one").read_bytes() == b"1"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_peft_config_names_the_documented_scaling(engine, tmp_path) -> None:
    engine.create_adapter("a", "tiny", LoraSpec(rank=8, train_mlp=False))
    engine.save_adapter("a", tmp_path / "a")
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (8, 32.0)
    assert config["target_modules"] == ["k_proj", "lm_head", "o_proj", "q_proj", "v_proj"]
