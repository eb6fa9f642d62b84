"""Every family that transformers makes for these tests runs on the lean path, with its numbers.

What all shapes have in common is tested where it belongs (`SHAPES`); here are adapters on parts of
a model, several in one batch, and samples that share prompts longer than windows and blocks.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers

from tests.engine.family_models import FAMILY_CONFIGS, make_family_model
from tests.engine.oracle import Oracle, assert_same, saved_gradients, saved_weights
from tests.engine.work import run_samples, sample_request, sft_datum, tokens, train, warm_up
from tinkex.engine.interface import LoraSpec, TrainRequest
from tinkex.engine.model.config import NotLean, parse_config
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.options import EngineOptions
from tinkex.engine.torch_engine import TorchEngine

PARTS = {"train_attn": "self_attn", "train_mlp": "mlp", "train_unembed": "lm_head"}


@pytest.fixture(params=FAMILY_CONFIGS)
def folder(request, model_folder):
    return model_folder(request.param)


def _engine(folder, *adapters: str) -> TorchEngine:
    engine = TorchEngine(EngineOptions(models={"tiny": str(folder)}))
    for seed, adapter_id in enumerate(adapters):
        engine.create_adapter(adapter_id, "tiny", LoraSpec(rank=3, seed=seed))
        warm_up(engine, adapter_id)
    return engine


def test_the_family_is_on_the_lean_path(folder) -> None:
    assert isinstance(_engine(folder)._base("tiny").backbone, Decoder)


@pytest.mark.parametrize("switch", PARTS)
def test_gradients_of_each_part_alone_are_those_of_peft(switch, folder, tmp_path) -> None:
    engine = _engine(folder)
    off = dict.fromkeys(PARTS, False)
    engine.create_adapter("a", "tiny", LoraSpec(rank=2, **{**off, switch: True}))
    warm_up(engine, "a")
    data = [sft_datum(40), sft_datum(9)]
    result = train(engine, "a", data)
    engine.save_adapter("a", tmp_path / "a", "all")
    assert all(PARTS[switch] in name for name in saved_weights(tmp_path / "a"))
    oracle = Oracle(folder, tmp_path / "a")
    loss = oracle.loss("cross_entropy", data)
    loss.backward()
    assert result.metrics["loss:sum"] == pytest.approx(loss.item(), rel=2e-5)
    assert_same(saved_gradients(tmp_path / "a"), oracle.gradients(), rtol=1e-4)


@pytest.mark.parametrize("names", ["ab", "abcd"], ids=["one by one", "multiplied together"])
def test_adapters_in_one_training_batch_get_the_gradients_they_get_alone(
    names, folder, tmp_path, monkeypatch
) -> None:
    engine = _engine(folder, *names)
    data = {name: [sft_datum(30, seed), sft_datum(9, seed)] for seed, name in enumerate(names)}
    lengths_of_passes = _count_passes(monkeypatch)
    requests = [
        TrainRequest(adapter_id=name, data=some, loss_fn="cross_entropy", loss_config={})
        for name, some in data.items()
    ]
    engine.forward_backward(requests)
    # The engine would try again one by one what fails together, which must not hide a failure.
    assert lengths_of_passes == [[30, 9] * len(names)]
    for name, some in data.items():
        engine.save_adapter(name, tmp_path / name, "all")
        oracle = Oracle(folder, tmp_path / name)
        oracle.loss("cross_entropy", some).backward()
        assert_same(saved_gradients(tmp_path / name), oracle.gradients(), rtol=1e-4)


def _count_passes(monkeypatch) -> list[list[int]]:
    """A list to which every training pass adds the lengths of its sequences."""
    found: list[list[int]] = []
    forward_with_backward = Decoder.forward_with_backward

    def counted(self, tokens_T, lengths, lora):
        found.append(lengths)
        return forward_with_backward(self, tokens_T, lengths, lora)

    monkeypatch.setattr(Decoder, "forward_with_backward", counted)
    return found


def test_adapters_sampled_in_one_batch_give_the_logprobs_of_peft(
    folder, tmp_path, with_and_without_kernels
) -> None:
    """Prompts are longer than a block of the cache and begin alike; one is asked for twice."""
    engine = _engine(folder, "a", "b")
    prompt = tokens(150)
    requests = []
    for name in ("a", "b"):
        engine.snapshot(name, f"s{name}")
        engine.save_adapter(name, tmp_path / name)
        for start, text in (("1", prompt), ("2", np.concatenate([prompt[:140], tokens(9)]))):
            requests.append(
                sample_request(
                    name + start, sampler_id=f"s{name}", tokens=text, max_tokens=20, seed=7,
                    num_samples=3, stop=[], prompt_logprobs=True,
                )
            )  # fmt: skip
    requests.append(sample_request("base", tokens=prompt, max_tokens=20, stop=[]))
    first = run_samples(engine, *requests)
    again = run_samples(engine, *requests)  # now with what the first run left in the cache
    oracles = {name: Oracle(folder, tmp_path / name) for name in ("a", "b")}
    oracles["base"] = Oracle(folder)
    for request in requests:
        oracle = oracles.get(request.request_id, oracles.get(request.request_id[0]))
        for found in (first, again):
            result = found[request.request_id]
            for sequence in result.sequences:
                full = np.concatenate([request.tokens, sequence.tokens])
                with torch.no_grad():
                    scores = oracle.all_logprobs(full)
                rows = np.arange(len(full) - 1)
                theirs = scores[rows, full[1:]].numpy()
                num_prompt = len(request.tokens)
                np.testing.assert_allclose(sequence.logprobs, theirs[num_prompt - 1 :], atol=2e-4)
            if request.prompt_logprobs:
                ours = result.prompt_logprobs[1:]
                np.testing.assert_allclose(ours, theirs[: num_prompt - 1], atol=2e-4)


def test_longrope_is_on_the_lean_path_up_to_its_original_context(tmp_path, caplog) -> None:
    """Beyond it the factors are others, so a longer context goes through transformers."""
    folder = make_family_model(tmp_path / "m", "phi4-mini", original_max_position_embeddings=64)
    path = folder / "config.json"
    raw = json.loads(path.read_text())
    del raw["rope_parameters"]["factor"]  # then it is the ratio of both contexts
    path.write_text(json.dumps(raw))
    data = [sft_datum(64), sft_datum(30)]
    for context_length in (64, None):
        options = EngineOptions(models={"tiny": str(folder)}, context_length=context_length)
        engine = TorchEngine(options)
        is_lean = isinstance(engine._base("tiny").backbone, Decoder)
        assert is_lean == (context_length == 64)
        engine.create_adapter("a", "tiny", LoraSpec(rank=1))
        with torch.no_grad():
            for datum, ours in zip(data, train(engine, "a", data).logprobs, strict=True):
                theirs = Oracle(folder).target_logprobs(datum)
                np.testing.assert_allclose(ours, theirs, atol=5e-5)
    assert "longrope positions change for sequences beyond 64 tokens" in caplog.text


def test_gemma_config_in_the_form_of_its_first_files(tmp_path) -> None:
    """One pattern for the windows, a theta for each kind of layer, much left to defaults."""
    folder = make_family_model(tmp_path / "m", "gemma3")
    path = folder / "config.json"
    raw = json.loads(path.read_text())
    for key in ("rope_parameters", "layer_types", "tie_word_embeddings", "hidden_activation"):
        del raw[key]
    raw |= {"rope_theta": 5_000.0, "rope_local_base_freq": 50.0, "sliding_window_pattern": 3}
    raw["rope_scaling"] = {"rope_type": "linear", "factor": 8.0}
    path.write_text(json.dumps(raw))
    engine = _engine(folder)
    assert isinstance(engine._base("tiny").backbone, Decoder)
    engine.create_adapter("a", "tiny", LoraSpec(rank=1))
    datum = sft_datum(60)
    with torch.no_grad():
        theirs = Oracle(folder).target_logprobs(datum)
    np.testing.assert_allclose(train(engine, "a", [datum]).logprobs[0], theirs, atol=5e-5)


def test_embeddings_are_scaled_in_the_type_that_transformers_scales_in(model_folder) -> None:
    folder = model_folder("gemma3")
    options = EngineOptions(models={"tiny": str(folder)}, dtype="bfloat16")
    backbone = TorchEngine(options)._base("tiny").backbone
    assert isinstance(backbone, Decoder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    ids = torch.arange(200)
    with torch.no_grad():
        assert torch.equal(backbone.weights.embed(ids), model.get_input_embeddings()(ids))


@pytest.mark.parametrize(
    "key",
    ["attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention"],
)
def test_what_gemma_can_also_have_is_named(key) -> None:
    raw = {**FAMILY_CONFIGS["gemma3"]().to_dict(), key: 30}
    assert parse_config(raw) == NotLean(f"it has {key}=30")


def _experts_raw(**changes) -> dict[str, object]:
    return {**FAMILY_CONFIGS["qwen3_moe"]().to_dict(), **changes}


def test_weights_of_experts_that_do_not_sum_to_one(tmp_path) -> None:
    """In the published form of the config, which calls the number of experts num_experts."""
    folder = make_family_model(tmp_path / "m", "qwen3_moe", norm_topk_prob=False)
    path = folder / "config.json"
    raw = json.loads(path.read_text())
    raw["num_experts"] = raw.pop("num_local_experts")
    path.write_text(json.dumps(raw))
    engine = _engine(folder, "a")
    assert isinstance(engine._base("tiny").backbone, Decoder)
    data = [sft_datum(40)]
    train(engine, "a", data)
    engine.save_adapter("a", tmp_path / "a", "all")
    oracle = Oracle(folder, tmp_path / "a")
    oracle.loss("cross_entropy", data).backward()
    assert_same(saved_gradients(tmp_path / "a"), oracle.gradients(), rtol=1e-4)


def test_adapters_of_experts_load_again_as_they_were_saved(model_folder, tmp_path) -> None:
    engine = _engine(model_folder("qwen3_moe"), "a")
    engine.save_adapter("a", tmp_path / "a", "all")
    engine.load_adapter("b", "tiny", tmp_path / "a", "all")
    engine.save_adapter("b", tmp_path / "b", "all")
    ours, again = saved_weights(tmp_path / "a"), saved_weights(tmp_path / "b")
    assert ours.keys() == again.keys()
    assert all(torch.equal(ours[name], again[name]) for name in ours)
    shape = ours["base_model.model.model.layers.0.mlp.experts.base_layer.lora_A.weight"].shape
    assert shape == (3 * 8, 48), "one LoRA for each expert"


@pytest.mark.parametrize("changes", [{"mlp_only_layers": [1]}, {"decoder_sparse_step": 2}])
def test_experts_in_some_layers_only_are_named(changes) -> None:
    found = parse_config(_experts_raw(**changes))
    assert found == NotLean("only some of its layers have experts")


def test_more_experts_per_token_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="num_experts_per_tok=9 must be from 1 to num_experts=8"):
        parse_config(_experts_raw(num_experts_per_tok=9))
