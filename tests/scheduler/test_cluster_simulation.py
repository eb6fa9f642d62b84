"""The simulated cluster of `benchmarks/simulate_cluster.py`: nothing is lost or comes twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks._cluster import Call, Cluster, Device, Leader, Sampling
from benchmarks.simulate_cluster import MIXES, Costs, Shape, null_calls_per_s, simulate

from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.engine.interface import LoraSpec
from tinkex.engine.options import EngineOptions
from tinkex.engine.torch_engine import TorchEngine
from tinkex.files.atomic_folder import folder_size_bytes

DEVICE = Device(
    train_tokens_per_s=1000.0,
    call_s=0.01,
    seats=16,
    step_s=0.01,
    step_seat_s=0.0,
    adapter_bytes=10.0,
    state_bytes=30.0,
    load_s=0.02,
)
CALL = Call(leader_s=0.001, log_bytes=100.0, worker_bytes=50.0)


def costs(leader_us: float = 1000.0) -> Costs:
    """One cost for everything."""
    names = ("forward_backward 1x64", "forward_backward 64x512", "optim_step")
    each = {"cpu_us": leader_us, "log_bytes": 100, "bytes": 50}
    calls: dict[str, Any] = dict.fromkeys((*names, "sample 1024+8x512", "step_sampling"), each)
    slots = {"1": {"idle_cpu_s_per_s": 0.0, "cpu_us": leader_us}}
    slots["1000"] = {"idle_cpu_s_per_s": 0.1, "cpu_us": 2 * leader_us}
    return Costs({"sqlite": calls, "frames": calls, "slots": slots})


def busy_cluster(seed: int = 0) -> Cluster:
    """Three trainers and two samplers with more work than they can do in a minute."""
    cluster = Cluster(DEVICE, trainers=3, samplers=2, seed=seed)
    for number in range(7):
        name = f"m{number}"
        cluster.add_model(name, f"t{number % 3}", 0)  # all on one: they have to move
        for step in range(200):
            tokens = cluster.random.randrange(10, 400)
            kind = "optim_step" if step % 3 == 2 else "forward_backward"
            when = cluster.random.uniform(0.0, 20.0)
            cluster.at(when, lambda n=name, k=kind, t=tokens: train(cluster, n, k, t))
            cluster.at(when, lambda n=name, s=step: sample(cluster, n, s))
    return cluster


def train(cluster: Cluster, name: str, kind: str, tokens: int) -> None:
    cluster.train(name, f"t{int(name[1:]) % 3}", kind, tokens, CALL, lambda _: None)


def sample(cluster: Cluster, name: str, version: int) -> None:
    cluster.sample(
        Sampling(
            tenant=f"t{int(name[1:]) % 3}",
            model_id=name,
            version=version // 50,
            num_samples=1 + version % 8,
            tokens=20,
            call=CALL,
            asked_at=cluster.now,
            done=lambda _: None,
        )
    )


def test_all_work_that_went_in_comes_out_once_and_no_device_does_more_than_it_can() -> None:
    cluster = busy_cluster()
    for until in range(1, 600):
        cluster.run(float(until))
        assert all(busy <= until + 1e-9 for busy in cluster.train_busy_s)
        assert cluster.sampled_s() <= until * DEVICE.seats * 2
        assert all(used <= until * DEVICE.seats + 1e-6 for used in cluster.seat_s)
        assert cluster.leader.busy_s <= until + 1.0
    assert cluster.started == cluster.finished == {"train": 1400, "sample": 1400}
    assert cluster.log_bytes == pytest.approx(2800 * 100.0)
    assert cluster.worker_bytes == pytest.approx(2800 * 50.0)
    assert min(min(waits) for waits in cluster.waited_s.values()) >= 0.0
    assert cluster.num_moves > 0
    assert cluster.put_bytes >= 30.0 * cluster.num_moves


def test_the_same_seed_gives_the_same_run_and_another_one_another() -> None:
    found = []
    for seed in (1, 1, 2):
        cluster = busy_cluster(seed)
        cluster.run(30.0)
        found.append((cluster.waited_s, cluster.train_busy_s, cluster.put_bytes))
    assert found[0] == found[1]
    assert found[0] != found[2]


def test_a_leader_does_one_thing_after_the_other_beside_its_background() -> None:
    leader = Leader()
    assert leader.spend(1.0, 0.5) == 1.5
    assert leader.spend(1.0, 0.5) == 2.0
    leader.set_background(3.0, 0.5)
    assert leader.spend(3.0, 0.5) == 4.0
    leader.set_background(5.0, 0.0)
    assert leader.busy_s == 1.5
    assert leader.background_s == 1.0


@pytest.mark.parametrize("mix", MIXES)
def test_shares_of_a_simulated_cluster_are_shares(mix: str) -> None:
    found = simulate(8, MIXES[mix], costs(), seconds=10.0)
    assert 0.0 < found["trainers busy"] <= 1.0
    assert found["seats taken"] is None or 0.0 < found["seats taken"] <= 1.0
    assert found["leader"] > 0.0


def test_a_leader_that_needs_longer_for_a_call_is_the_limit() -> None:
    assert null_calls_per_s(8, leader_s=0.0001) == pytest.approx(160.0, rel=0.05)
    assert null_calls_per_s(8, leader_s=0.02) == pytest.approx(50.0, rel=0.05)


def test_the_size_of_an_adapter_is_that_of_its_folder(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", "smollm")
    engine = TorchEngine(EngineOptions(models={"tiny": str(model)}))
    engine.create_adapter("a", "tiny", LoraSpec(rank=32))
    engine.save_adapter("a", tmp_path / "adapter")
    (info,) = engine.models()
    assert info.path is not None
    size = folder_size_bytes(tmp_path / "adapter")
    assert size == pytest.approx(shape_of(Path(info.path)).adapter_bytes(32), rel=0.1)


def shape_of(folder: Path) -> Shape:
    """The shape of a model on disk."""
    config = json.loads((folder / "config.json").read_text())
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return Shape(
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        layers=config["num_hidden_layers"],
        queries=config["num_attention_heads"] * head,
        keys=config["num_key_value_heads"] * head,
        vocabulary=config["vocab_size"],
    )
