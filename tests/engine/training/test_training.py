"""Losses, gradients and optimizer steps against transformers + peft with plain autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.engine.conftest import SHAPES
from tests.engine.oracle import Oracle, assert_same, saved_gradients, saved_weights
from tests.engine.work import optim, policy_datum, sft_datum, top_k_datum, train, warm_up
from tinkex.engine.interface import LoraSpec, TrainRequest
from tinkex.engine.options import EngineOptions
from tinkex.engine.torch_engine import TorchEngine


def _ones(length: int, value: float) -> np.ndarray:
    return np.full(length, value, np.float32)


def _mask(length: int) -> np.ndarray:
    mask = np.ones(length, np.float32)
    mask[: length // 3] = 0
    return mask


CASES = {
    "cross_entropy": ("cross_entropy", [sft_datum(13), sft_datum(5), sft_datum(13, 1)], {}),
    "cross_entropy top-k": ("cross_entropy", [top_k_datum(9, 3), top_k_datum(4, 5)], {}),
    "importance_sampling": ("importance_sampling", [policy_datum(13), policy_datum(6)], {}),
    "ppo": ("ppo", [policy_datum(13), policy_datum(6)], {}),
    "ppo with bounds": (
        "ppo",
        [policy_datum(13)],
        {"clip_low_threshold": 0.2, "clip_high_threshold": 3.0},
    ),
    "ppo with bounds per token": (
        "ppo",
        [policy_datum(9, clip_low_threshold=_ones(9, 0.1), clip_high_threshold=_ones(9, 2.0))],
        {},
    ),
    "cispo": ("cispo", [policy_datum(13), policy_datum(6)], {}),
    "dro": ("dro", [policy_datum(13), policy_datum(6)], {}),
    "dro with beta": ("dro", [policy_datum(13)], {"beta": 0.4}),
    "gspo": (
        "gspo",
        [policy_datum(n, sequence_ratio_mask=_mask(n)) for n in (13, 6)],
        {"clip_low_threshold": 0.5, "clip_high_threshold": 2.0},
    ),
}
CISPO_DEFAULTS = {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0}


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_are_those_of_autograd(case, engine, tiny, tmp_path) -> None:
    loss_fn, data, config = CASES[case]
    engine.create_adapter("a", "tiny", LoraSpec(rank=4, seed=1))
    warm_up(engine, "a")

    result = train(engine, "a", data, loss_fn, **config)
    engine.save_adapter("a", tmp_path / "a", "all")

    oracle = Oracle(tiny, tmp_path / "a")
    loss = oracle.loss(
        loss_fn, data, **({**CISPO_DEFAULTS, **config} if loss_fn == "cispo" else config)
    )
    loss.backward()
    assert result.metrics["loss:sum"] == pytest.approx(loss.item(), rel=2e-5, abs=1e-4)
    for datum, logprobs in zip(data, result.logprobs, strict=True):
        assert logprobs.shape == datum.inputs["target_tokens"].shape
        np.testing.assert_allclose(logprobs, oracle.target_logprobs(datum).detach(), atol=5e-5)
    assert_same(saved_gradients(tmp_path / "a"), oracle.gradients(), rtol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_of_every_shape_are_those_of_autograd(shape, model_folder, tmp_path) -> None:
    folder = model_folder(shape)
    engine = TorchEngine(EngineOptions(models={"tiny": str(folder)}))
    engine.create_adapter("a", "tiny", LoraSpec(rank=3, seed=2))
    warm_up(engine, "a", steps=2)
    data = [sft_datum(26), sft_datum(8)]
    train(engine, "a", data)
    engine.save_adapter("a", tmp_path / "a", "all")

    oracle = Oracle(folder, tmp_path / "a")
    oracle.loss("cross_entropy", data).backward()
    assert_same(saved_gradients(tmp_path / "a"), oracle.gradients(), rtol=1e-4)


@pytest.mark.parametrize("switch", ["train_attn", "train_mlp", "train_unembed"])
def test_switches_train_their_part_alone(switch, engine, tiny, tmp_path) -> None:
    parts = {"train_attn": "self_attn", "train_mlp": "mlp", "train_unembed": "lm_head"}
    off = dict.fromkeys(parts, False)
    engine.create_adapter("a", "tiny", LoraSpec(rank=2, **{**off, switch: True}))
    warm_up(engine, "a")
    data = [sft_datum(10)]
    train(engine, "a", data)
    engine.save_adapter("a", tmp_path / "a", "all")
    gradients = saved_gradients(tmp_path / "a")
    assert all(parts[switch] in name for name in gradients)
    oracle = Oracle(tiny, tmp_path / "a")
    oracle.loss("cross_entropy", data).backward()
    assert_same(gradients, oracle.gradients(), rtol=1e-4)


def test_new_adapter_changes_nothing_and_its_seed_fixes_it(engine, tiny, tmp_path) -> None:
    for adapter_id, seed in (("a", 7), ("b", 7), ("c", 8)):
        engine.create_adapter(adapter_id, "tiny", LoraSpec(rank=4, seed=seed))
        engine.save_adapter(adapter_id, tmp_path / adapter_id)
    a, b, c = (saved_weights(tmp_path / name) for name in "abc")
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert all(torch.equal(a[name], c[name]) == name.endswith("lora_B.weight") for name in a)
    assert all(bool(a[name].any()) == name.endswith("lora_A.weight") for name in a)
    datum = sft_datum(15)
    with torch.no_grad():
        base = Oracle(tiny).target_logprobs(datum)
    np.testing.assert_allclose(train(engine, "a", [datum]).logprobs[0], base, atol=2e-5)


def test_gradients_of_several_calls_add_up(engine, tmp_path) -> None:
    engine.create_adapter("a", "tiny", LoraSpec(rank=4))
    engine.create_adapter("b", "tiny", LoraSpec(rank=4))
    data = [sft_datum(9), sft_datum(14), sft_datum(9, 5)]
    for datum in data:
        train(engine, "a", [datum])
    train(engine, "b", data)
    for adapter_id in "ab":
        engine.save_adapter(adapter_id, tmp_path / adapter_id, "all")
    assert_same(saved_gradients(tmp_path / "a"), saved_gradients(tmp_path / "b"), rtol=1e-5)


def test_forward_only_leaves_no_gradient(engine) -> None:
    engine.create_adapter("a", "tiny", LoraSpec(rank=4))
    request = TrainRequest(adapter_id="a", data=[sft_datum(9)], backward=False)
    (forward,) = engine.forward_backward([request])
    assert engine.adapters()[0].pending_backwards == 0
    full = train(engine, "a", [sft_datum(9)])
    np.testing.assert_array_equal(forward.logprobs[0], full.logprobs[0])
    assert forward.metrics == full.metrics


def test_micro_batches_give_what_one_batch_gives(tiny, tmp_path) -> None:
    data = [sft_datum(length, seed) for seed, length in enumerate((9, 30, 4, 30, 17, 1))]
    results = {}
    for name, size in (("one", 4096), ("many", 31)):
        engine = TorchEngine(EngineOptions(models={"tiny": str(tiny)}, microbatch_tokens=size))
        engine.create_adapter("a", "tiny", LoraSpec(rank=4))
        results[name] = train(engine, "a", data)
        engine.save_adapter("a", tmp_path / name, "all")
    for one, many in zip(results["one"].logprobs, results["many"].logprobs, strict=True):
        np.testing.assert_allclose(one, many, atol=1e-5)
    one, many = (saved_gradients(tmp_path / name) for name in ("one", "many"))
    assert_same(many, one, rtol=1e-5)


def test_small_head_chunks_give_what_one_chunk_gives(engine, tmp_path, monkeypatch) -> None:
    data = [sft_datum(19), sft_datum(8)]
    for adapter_id in "ab":
        engine.create_adapter(adapter_id, "tiny", LoraSpec(rank=4))
        warm_up(engine, adapter_id)
    whole = train(engine, "a", data)
    monkeypatch.setattr("tinkex.engine.model.lm_head.CHUNK_BYTES", 5 * 4 * 272)
    chunked = train(engine, "b", data)
    for one, other in zip(whole.logprobs, chunked.logprobs, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    for adapter_id in "ab":
        engine.save_adapter(adapter_id, tmp_path / adapter_id, "all")
    assert_same(saved_gradients(tmp_path / "b"), saved_gradients(tmp_path / "a"), rtol=1e-5)


@pytest.mark.parametrize(
    "numbers",
    [
        {"learning_rate": 1e-3},
        {"learning_rate": 1e-2, "beta1": 0.8, "beta2": 0.999, "eps": 1e-8},
        {"learning_rate": 1e-2, "weight_decay": 0.3},
        {"learning_rate": 1e-2, "grad_clip_norm": 0.5},
    ],
    ids=["defaults", "betas", "weight decay", "clipping"],
)
def test_steps_are_those_of_torch_adamw(numbers, engine, tiny, tmp_path) -> None:
    engine.create_adapter("a", "tiny", LoraSpec(rank=4, seed=3))
    warm_up(engine, "a")
    engine.save_adapter("a", tmp_path / "start")
    engine.load_adapter("a", "tiny", tmp_path / "start")  # forgets the moments
    oracle = Oracle(tiny, tmp_path / "start")
    adam = torch.optim.AdamW(
        oracle.parameters(),
        lr=numbers["learning_rate"],
        betas=(numbers.get("beta1", 0.9), numbers.get("beta2", 0.95)),
        eps=numbers.get("eps", 1e-12),
        weight_decay=numbers.get("weight_decay", 0.0),
    )
    for step in range(3):
        data = [sft_datum(12, step), sft_datum(7, step)]
        train(engine, "a", data)
        metrics = optim(engine, "a", **numbers)
        adam.zero_grad()
        oracle.loss("cross_entropy", data).backward()
        clip = numbers.get("grad_clip_norm") or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(oracle.parameters(), clip)
        adam.step()
        assert metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    engine.save_adapter("a", tmp_path / "end")
    assert_same(saved_weights(tmp_path / "end"), oracle.weights(), rtol=2e-4)


def test_step_without_gradients_moves_nothing(engine, tmp_path) -> None:
    engine.create_adapter("a", "tiny", LoraSpec(rank=4))
    warm_up(engine, "a")
    engine.save_adapter("a", tmp_path / "before", "optimizer")
    metrics = optim(engine, "a", learning_rate=1.0, weight_decay=0.5)
    engine.save_adapter("a", tmp_path / "after", "optimizer")
    assert metrics == {"grad_norm": 0.0, "skipped": 1.0}
    for name in ("adapter_model.safetensors", "optimizer.safetensors", "tinkex_adapter.json"):
        assert (tmp_path / "before" / name).read_bytes() == (tmp_path / "after" / name).read_bytes()


def test_zero_gradient_is_an_ordinary_step(engine) -> None:
    engine.create_adapter("a", "tiny", LoraSpec(rank=4))
    datum = sft_datum(6)
    datum.inputs["weights"] = np.zeros(6, np.float32)
    train(engine, "a", [datum])
    assert optim(engine, "a") == {"grad_norm": 0.0}
    assert engine.adapters()[0].step == 1
