"""Every optimizer takes the steps of its oracle, and comes back from a folder bit for bit."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from tests.engine.oracle import Oracle, PlainMuon, assert_same, saved_weights
from tests.engine.work import optim, sft_datum, step_with, train, warm_up
from tinkex.engine.errors import EngineUserError
from tinkex.engine.interface import LoraSpec, OptimRequest, RequestError
from tinkex.engine.lora.adapter import AdapterWeights, LoraGroup, LoraLayout, LoraTarget
from tinkex.engine.null import NullEngine
from tinkex.engine.torch_engine import TorchEngine
from tinkex.engine.training.optimizer import TrainingState
from tinkex.engine.training.update_rules import RULES
from tinkex.types.optimizers import (
    ALL_OPTIMIZERS,
    DimuonParams,
    SgdParams,
    TaggedAdamParams,
    TaggedOptimParams,
)

STATE_FILES = ("adapter_model.safetensors", "optimizer.safetensors", "gradients.safetensors")
PARAMS: dict[str, TaggedOptimParams] = {
    "adamw": TaggedAdamParams(learning_rate=0.01, weight_decay=0.1),
    "sgd": SgdParams(learning_rate=0.01, momentum=0.8, nesterov=True, weight_decay=0.1),
    "dimuon": DimuonParams(learning_rate=0.01, grad_clip_norm=1.0),
}
OTHER = {"adamw": "sgd", "sgd": "dimuon", "dimuon": "adamw"}


def _start(engine: TorchEngine, folder: Path) -> None:
    """An adapter 'a' far from zero without optimizer state, also in the folder."""
    engine.create_adapter("a", "tiny", LoraSpec(rank=4, seed=3))
    warm_up(engine, "a")
    engine.save_adapter("a", folder)
    engine.load_adapter("a", "tiny", folder)


def _data(step: int) -> list:
    return [sft_datum(12, step), sft_datum(7, step)]


def _oracle_gradient(oracle: Oracle, step: int, clip: float) -> float:
    """The norm before clipping; the oracle's parameters have the clipped gradients."""
    for parameter in oracle.parameters():
        parameter.grad = None
    oracle.loss("cross_entropy", _data(step)).backward()
    return float(torch.nn.utils.clip_grad_norm_(oracle.parameters(), clip or math.inf))


def test_every_optimizer_of_the_wire_has_a_rule() -> None:
    assert set(RULES) == set(ALL_OPTIMIZERS) == set(PARAMS)


@pytest.mark.parametrize(
    "numbers",
    [
        {"momentum": 0.0},
        {},
        {"momentum": 0.7, "nesterov": True},
        {"weight_decay": 0.3},
        {"momentum": 0.0, "weight_decay": 0.3},
        {"nesterov": True, "weight_decay": 0.1, "grad_clip_norm": 0.5},
    ],
    ids=["plain", "momentum", "nesterov", "decay", "plain decay", "all, clipped"],
)
def test_steps_are_those_of_torch_sgd(numbers, engine, tiny, tmp_path) -> None:
    _start(engine, tmp_path / "start")
    oracle = Oracle(tiny, tmp_path / "start")
    params = SgdParams(learning_rate=1e-3, **numbers)
    sgd = torch.optim.SGD(
        oracle.parameters(),
        lr=1e-3,
        momentum=params.momentum,
        nesterov=params.nesterov,
        weight_decay=params.weight_decay,
    )
    for step in range(4):
        train(engine, "a", _data(step))
        metrics = step_with(engine, "a", params)
        norm = _oracle_gradient(oracle, step, params.grad_clip_norm)
        sgd.step()
        assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)
    engine.save_adapter("a", tmp_path / "end")
    assert_same(saved_weights(tmp_path / "end"), oracle.weights(), rtol=2e-4)


@pytest.mark.parametrize(
    "numbers",
    [{}, {"beta1": 0.5}, {"beta1": 0.0}, {"grad_clip_norm": 0.5}],
    ids=["defaults", "beta", "no momentum", "clipping"],
)
def test_steps_are_those_of_published_muon(numbers, engine, tiny, tmp_path) -> None:
    _start(engine, tmp_path / "start")
    oracle = Oracle(tiny, tmp_path / "start")
    params = DimuonParams(learning_rate=0.02, **numbers)
    muon = PlainMuon(oracle.parameters(), 0.02, params.beta1)
    for step in range(3):
        train(engine, "a", _data(step))
        metrics = step_with(engine, "a", params)
        norm = _oracle_gradient(oracle, step, params.grad_clip_norm)
        muon.step()
        assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-3)
    engine.save_adapter("a", tmp_path / "end")
    assert_same(saved_weights(tmp_path / "end"), oracle.weights(), rtol=1e-3)


def test_muon_moves_as_torch_muon_does_in_bfloat16() -> None:
    targets = tuple(LoraTarget(f"t{n}", 48, size) for n, size in enumerate((40, 8, 100)))
    layout = LoraLayout([LoraGroup("first", "attn", targets)], LoraSpec(rank=8))
    torch.manual_seed(0)
    start = torch.randn(layout.numel)
    state = TrainingState(AdapterWeights(layout, start.clone()))
    matrices = [each.clone() for pair in layout.named(start).values() for each in pair]
    muon = torch.optim.Muon(matrices, lr=0.02, momentum=0.9, nesterov=True, weight_decay=0.0)
    for _ in range(4):
        gradient = torch.randn(layout.numel)
        gradients = [each.clone() for pair in layout.named(gradient).values() for each in pair]
        for matrix, of_matrix in zip(matrices, gradients, strict=True):
            matrix.grad = of_matrix
        muon.step()
        state.add_gradient(gradient, 1)
        state.apply(DimuonParams(learning_rate=0.02))
    before = [each for pair in layout.named(start).values() for each in pair]
    after = [each for pair in layout.named(state.weights.flat).values() for each in pair]
    for old, ours, theirs in zip(before, after, matrices, strict=True):
        gap = (ours - theirs).norm() / (theirs - old).norm()
        assert float(gap) < 0.03


def test_a_matrix_without_gradient_stays_under_muon(engine, tmp_path) -> None:
    engine.create_adapter("a", "tiny", LoraSpec(rank=4, seed=3))
    engine.save_adapter("a", tmp_path / "start")
    train(engine, "a", _data(0))
    step_with(engine, "a", DimuonParams(learning_rate=0.02))
    engine.save_adapter("a", tmp_path / "end")
    start, end = saved_weights(tmp_path / "start"), saved_weights(tmp_path / "end")
    for name in start:  # B is zero, so A's gradient is
        assert torch.equal(start[name], end[name]) == ("lora_A" in name), name


@pytest.mark.parametrize("name", PARAMS)
def test_complete_state_goes_on_bit_for_bit(name, engine, tmp_path) -> None:
    engine.create_adapter("a", "tiny", LoraSpec(rank=4, seed=9))
    for step in range(3):
        train(engine, "a", _data(step))
        step_with(engine, "a", PARAMS[name])
    train(engine, "a", [sft_datum(10)])
    engine.save_adapter("a", tmp_path / "mid", "all")
    assert json.loads((tmp_path / "mid" / "tinkex_adapter.json").read_text())["optimizer"] == name
    info = engine.load_adapter("b", "tiny", tmp_path / "mid", "all")
    assert (info.step, info.pending_backwards) == (3, 1)
    for adapter_id in "ab":
        train(engine, adapter_id, [sft_datum(7)])
        step_with(engine, adapter_id, PARAMS[name])
        train(engine, adapter_id, [sft_datum(8)])
        engine.save_adapter(adapter_id, tmp_path / adapter_id, "all")
    for file in STATE_FILES:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file


@pytest.mark.parametrize("name", PARAMS)
def test_saving_beside_the_work_keeps_the_optimizer(name, engine, tmp_path) -> None:
    engine.create_adapter("a", "tiny", LoraSpec(rank=4))
    train(engine, "a", _data(0))
    step_with(engine, "a", PARAMS[name])
    engine.save_adapter("a", tmp_path / "now", "optimizer")
    saved = engine.start_saving("a", tmp_path / "beside", "optimizer")
    train(engine, "a", _data(1))
    step_with(engine, "a", PARAMS[name])
    saved.result(20)
    for file in STATE_FILES[:2]:
        assert (tmp_path / "now" / file).read_bytes() == (tmp_path / "beside" / file).read_bytes()


def test_a_folder_that_does_not_name_its_optimizer_holds_adamw(engine, tmp_path) -> None:
    engine.create_adapter("a", "tiny", LoraSpec(rank=4))
    warm_up(engine, "a")
    engine.save_adapter("a", tmp_path / "old", "all")
    own = tmp_path / "old" / "tinkex_adapter.json"
    content = json.loads(own.read_text())
    del content["optimizer"]
    own.write_text(json.dumps(content))
    (tmp_path / "old" / "tinkex_files.json").unlink()  # hashes of the file as it was
    engine.load_adapter("b", "tiny", tmp_path / "old", "all")
    for adapter_id in "ab":
        train(engine, adapter_id, [sft_datum(7)])
        optim(engine, adapter_id, learning_rate=0.01)
        engine.save_adapter(adapter_id, tmp_path / adapter_id, "all")
    for file in STATE_FILES[:2]:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file


def test_a_folder_of_an_unknown_optimizer_is_refused(engine, tmp_path) -> None:
    engine.create_adapter("a", "tiny", LoraSpec(rank=4))
    warm_up(engine, "a")
    engine.save_adapter("a", tmp_path / "a", "optimizer")
    own = tmp_path / "a" / "tinkex_adapter.json"
    own.write_text(json.dumps(json.loads(own.read_text()) | {"optimizer": "lion"}))
    (tmp_path / "a" / "tinkex_files.json").unlink()
    with pytest.raises(EngineUserError, match="'lion' is not known here") as caught:
        engine.load_adapter("b", "tiny", tmp_path / "a", "optimizer")
    assert caught.value.code == "unknown-optimizer"
    assert engine.load_adapter("b", "tiny", tmp_path / "a", "weights").step == 0


@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize("kind", ["torch", "null"])
def test_parameters_of_another_optimizer_are_refused_and_change_nothing(
    kind, name, request, tmp_path
) -> None:
    engine = NullEngine(("tiny",)) if kind == "null" else request.getfixturevalue("engine")
    engine.create_adapter("a", "tiny", LoraSpec(rank=4))
    train(engine, "a", _data(0))
    step_with(engine, "a", PARAMS[name])
    train(engine, "a", _data(1))
    engine.save_adapter("a", tmp_path / "a", "all")
    engine.load_adapter("loaded", "tiny", tmp_path / "a", "all")
    for adapter_id in ("a", "loaded"):
        payload = OptimRequest(adapter_id=adapter_id, params=PARAMS[OTHER[name]])
        (answer,) = engine.optim_step([payload])
        assert isinstance(answer, RequestError)
        assert answer.code == "wrong-optimizer"
        assert repr(name) in answer.message
        assert step_with(engine, adapter_id, PARAMS[name])["grad_norm"] > 0
    engine.load_adapter("weights", "tiny", tmp_path / "a", "weights")
    train(engine, "weights", _data(2))
    assert step_with(engine, "weights", PARAMS[OTHER[name]])["grad_norm"] > 0
