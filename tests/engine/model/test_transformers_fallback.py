"""Models of other shapes run through transformers, with the same promises."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from tests.engine.oracle import Oracle, assert_same, saved_gradients
from tests.engine.work import run_samples, sample_request, sft_datum, train, warm_up
from tinkex.engine.errors import EngineUserError
from tinkex.engine.interface import LoraSpec
from tinkex.engine.options import EngineOptions
from tinkex.engine.torch_engine import TorchEngine

SMALL = {"vocab_size": 272, "bos_token_id": 0, "eos_token_id": 258}
CONFIGS = {
    "gpt2": transformers.GPT2Config(n_embd=24, n_layer=2, n_head=3, n_positions=128, **SMALL),
    "gpt_neox": transformers.GPTNeoXConfig(
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=40,
        max_position_embeddings=128,
        **SMALL,
    ),
    "granite": transformers.GraniteConfig(
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=40,
        logits_scaling=3.0,
        max_position_embeddings=128,
        **SMALL,
    ),
}


@pytest.fixture(params=CONFIGS)
def folder(request, tmp_path) -> Path:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[request.param])
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(tmp_path / request.param)
    return tmp_path / request.param


def test_loss_gradients_and_export_are_those_of_peft(folder, tmp_path) -> None:
    engine = TorchEngine(EngineOptions(models={"tiny": str(folder)}))
    for adapter_id, seed in (("a", 1), ("b", 2)):
        engine.create_adapter(adapter_id, "tiny", LoraSpec(rank=3, seed=seed))
        warm_up(engine, adapter_id)
    data = [sft_datum(12), sft_datum(7)]
    result = train(engine, "a", data)
    engine.save_adapter("a", tmp_path / "a", "all")
    oracle = Oracle(folder, tmp_path / "a")
    loss = oracle.loss("cross_entropy", data)
    loss.backward()
    assert result.metrics["loss:sum"] == pytest.approx(loss.item(), rel=1e-4)
    assert_same(saved_gradients(tmp_path / "a"), oracle.gradients(), rtol=1e-3)


def test_the_log_says_why_a_model_is_not_on_the_lean_path(folder, caplog) -> None:
    TorchEngine(EngineOptions(models={"tiny": str(folder)}))
    (message,) = (record.getMessage() for record in caplog.records)
    assert message.startswith("Model 'tiny' runs through transformers, more slowly: model_type=")


def test_part_of_an_adapter_loads_in_peft_alone(folder, tmp_path) -> None:
    engine = TorchEngine(EngineOptions(models={"tiny": str(folder)}))
    engine.create_adapter("a", "tiny", LoraSpec(rank=2, train_mlp=False, train_unembed=False))
    warm_up(engine, "a")
    engine.save_adapter("a", tmp_path / "a")
    datum = sft_datum(9)
    oracle = Oracle(folder, tmp_path / "a")
    with torch.no_grad():
        theirs = oracle.target_logprobs(datum)
    np.testing.assert_allclose(train(engine, "a", [datum]).logprobs[0], theirs, atol=1e-4)
    assert all("attn" in name or "attention" in name for name in oracle.weights())


def test_greedy_answer_is_the_oracles(folder) -> None:
    engine = TorchEngine(EngineOptions(models={"tiny": str(folder)}))
    request = sample_request(temperature=0.0, stop=[], num_samples=2, max_tokens=6)
    one, two = run_samples(engine, request)["r"].sequences
    np.testing.assert_array_equal(one.tokens, two.tokens)
    full = np.concatenate([request.tokens, one.tokens])
    with torch.no_grad():
        scores = Oracle(folder).all_logprobs(full)[len(request.tokens) - 1 : -1]
    np.testing.assert_allclose(one.logprobs, scores.max(-1).values, atol=1e-4)


def test_stop_strings_without_a_tokenizer_are_refused(folder) -> None:
    engine = TorchEngine(EngineOptions(models={"tiny": str(folder)}))
    with pytest.raises(EngineUserError, match="Use stop token ids"):
        engine.submit_sample(sample_request(stop=["x"]))


def test_head_that_caps_its_logits_is_refused(tmp_path) -> None:
    config = transformers.Gemma2Config(
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=12,
        intermediate_size=40,
        final_logit_softcapping=0.5,
        max_position_embeddings=64,
        **SMALL,
    )
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "m")
    with pytest.raises(EngineUserError, match="more to its logits"):
        TorchEngine(EngineOptions(models={"tiny": str(tmp_path / "m")}))


def test_unknown_model_is_named(tmp_path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text('{"model_type": "nonesuch"}')
    with pytest.raises(EngineUserError, match="transformers cannot load 'm'"):
        TorchEngine(EngineOptions(models={"tiny": str(tmp_path / "m")}))
