"""Training through the official client, each number against transformers, peft and autograd.

python -m tests.contract.training_scenarios [part of a scenario's name ...]
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinker
import torch
from safetensors.torch import load_file
from tinker import types

from tests.contract.judge import Judge, check_agreement, check_weights, scores
from tests.contract.world import (
    MODEL,
    World,
    as_datum,
    datum,
    is_user_error,
    logprobs_of,
    prompt,
    run_scenarios,
    scenario,
    scenario_of,
)
from tests.engine.oracle import PlainMuon
from tests.engine.work import policy_datum, sft_datum, tokens, top_k_datum
from tinkex.engine.interface import TrainDatum

# An eps far above the noise of float32 gradients, or Adam would blow that noise up to full steps.
ADAM = {"learning_rate": 0.02, "beta1": 0.9, "beta2": 0.95, "eps": 1e-2, "weight_decay": 0.0}
CLIPS = {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}


# --- losses


def _mask(length: int) -> np.ndarray:
    return (np.arange(length) > length // 3).astype(np.float32)


def _policy(*, has_mask: bool = False, has_clips: bool = False) -> list[TrainDatum]:
    """Two sequences whose ratios lie on both sides of the clips."""
    data = []
    for length, seed in ((9, 1), (14, 2)):
        extra: dict[str, np.ndarray] = {"sequence_ratio_mask": _mask(length)} if has_mask else {}
        if has_clips:
            extra["clip_low_threshold"] = np.linspace(0.5, 0.95, length).astype(np.float32)
            extra["clip_high_threshold"] = np.linspace(1.05, 2.0, length).astype(np.float32)
        data.append(policy_datum(length, seed, **extra))
    return data


def _sparse_top_k(length: int = 12, k: int = 10) -> TrainDatum:
    """Few targets per position, in other cells for tokens than for weights."""
    example = top_k_datum(length, k, seed=4)
    rng = np.random.default_rng(9)
    keep = rng.random((length, k)) < 0.15
    keep[:, 0] = True
    ids = np.where(keep, example.inputs["target_tokens"], 0)
    weights = np.where(keep, example.inputs["weights"], 0).astype(np.float32)
    ids[3, 0], weights[3, 0] = 0, 0.5  # token 0 is a token too
    weights[5, 0] = 0.0
    return TrainDatum(tokens=example.tokens, inputs={"target_tokens": ids, "weights": weights})


def _as_csr(example: TrainDatum) -> types.Datum:
    inputs = {
        name: torch.from_numpy(array.astype(np.int64 if name == "target_tokens" else np.float32))
        for name, array in example.inputs.items()
    }
    sent = types.Datum(
        model_input=types.ModelInput.from_ints(example.tokens.tolist()), loss_fn_inputs=inputs
    )
    for name in inputs:
        assert sent.loss_fn_inputs[name].sparse_crow_indices is not None, "the client compressed it"
    return sent


# case: the data, the config that is sent, and the config the published defaults make of it
LOSSES: dict[str, tuple[str, list[TrainDatum], dict[str, float], dict[str, float]]] = {
    "ce": ("cross_entropy", [sft_datum(9, 1), sft_datum(17, 2)], {}, {}),
    "ce_top_k": ("cross_entropy", [top_k_datum(8, 3, 1), top_k_datum(11, 3, 2)], {}, {}),
    "ce_top_k_csr": ("cross_entropy", [_sparse_top_k()], {}, {}),
    "is": ("importance_sampling", _policy(), {}, {}),
    "ppo": (
        "ppo",
        _policy(),
        {},
        {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2},
    ),
    "ppo_config": ("ppo", _policy(), CLIPS, CLIPS),
    "ppo_one_key": (
        "ppo",
        _policy(),
        {"clip_high_threshold": 3.0},
        {"clip_low_threshold": 0.8, "clip_high_threshold": 3.0},
    ),
    "ppo_per_token": ("ppo", _policy(has_clips=True), {}, {}),
    "cispo": (
        "cispo",
        _policy(),
        {},
        {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0},
    ),
    "cispo_config": ("cispo", _policy(), CLIPS, CLIPS),
    "dro": ("dro", _policy(), {}, {"beta": 0.05}),
    "dro_config": ("dro", _policy(), {"beta": 0.7}, {"beta": 0.7}),
    "gspo": (
        "gspo",
        _policy(has_mask=True),
        {},
        {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2},
    ),
    "gspo_config": (
        "gspo",
        _policy(has_mask=True),
        {"clip_low_threshold": 0.1, "clip_high_threshold": 9.0},
        {"clip_low_threshold": 0.1, "clip_high_threshold": 9.0},
    ),
}


@scenario_of(
    "ce",
    "ce_top_k",
    "ce_top_k_csr",
    "is",
    "ppo",
    "ppo_config",
    "ppo_one_key",
    "ppo_per_token",
    "cispo",
    "cispo_config",
    "dro",
    "dro_config",
    "gspo",
    "gspo_config",
)
def loss(world: World, case: str) -> None:
    loss_fn, examples, config, meant = LOSSES[case]
    training = world.trained()
    start = world.exported(training, "start")
    sent = [_as_csr(each) if case.endswith("csr") else as_datum(each) for each in examples]
    output = training.forward_backward(sent, loss_fn, config or None).result()
    metrics = training.optim_step(types.AdamParams(**ADAM)).result().metrics or {}
    judge = Judge(world.oracle(adapter=start))
    expected = judge.backward(loss_fn, examples, meant)
    scale = max(1.0, abs(expected))
    world.agree("loss:sum (relative)", output.metrics["loss:sum"] / scale, expected / scale, 1e-5)
    world.agree("trainer logprobs", logprobs_of(output), judge.logprobs(examples), 1e-4)
    for out, example in zip(output.loss_fn_outputs, examples, strict=True):
        assert tuple(out["logprobs"].shape or ()) == example.inputs["target_tokens"].shape
    norm = judge.norm()
    world.agree("grad_norm (relative)", metrics["grad_norm"] / norm, 1.0, 1e-5)
    judge.step(**ADAM)
    check_weights(world, "weights after a step", start, world.exported(training, "end"), judge)


@scenario
def forward_scores_as_forward_backward_does_and_leaves_no_gradient(world: World) -> None:
    training = world.trained()
    for loss_fn, examples, config, _ in LOSSES.values():
        data = [as_datum(example) for example in examples]
        forward = training.forward(data, loss_fn, config or None)
        both = world.trained().forward_backward(data, loss_fn, config or None)
        assert forward.result().metrics["loss:sum"] == pytest.approx(
            both.result().metrics["loss:sum"], rel=1e-6
        )
    assert training.optim_step(types.AdamParams()).result().metrics == {
        "grad_norm": 0.0,
        "skipped": 1.0,
    }


@scenario
def losses_are_sums_never_means(world: World) -> None:
    training = world.trained()
    one = training.forward([datum(9)], "cross_entropy").result().metrics["loss:sum"]
    four = training.forward([datum(9)] * 4, "cross_entropy").result().metrics["loss:sum"]
    world.agree("sum of four", four, 4 * one, 1e-4)
    heavy = sft_datum(9)
    heavy.inputs["weights"] = heavy.inputs["weights"] * 8
    weighted = training.forward([as_datum(heavy)], "cross_entropy").result().metrics["loss:sum"]
    world.agree("sum of four", weighted, 8 * one, 1e-4)


@scenario
def a_custom_loss_moves_the_weights_as_autograd_would(world: World) -> None:
    training = world.trained()
    start = world.exported(training, "start")
    example = sft_datum(10, 3)

    def custom(data: list[types.Datum], logprobs: list[torch.Tensor]) -> tuple[Any, dict[str, Any]]:
        return (logprobs[0].exp() ** 2).sum() - 0.1 * logprobs[0].sum(), {"mine": 3.0}

    output = training.forward_backward_custom([as_datum(example)], custom).result()
    training.optim_step(types.AdamParams(**ADAM)).result()
    judge = Judge(world.oracle(adapter=start))
    expected, _ = custom([], [judge.oracle.target_logprobs(example)])
    expected.backward()
    world.agree("custom loss", output.metrics["loss:sum"], float(expected.detach()), 1e-4)
    assert output.metrics["mine"] == 3.0
    judge.step(**ADAM)
    check_weights(world, "weights after a step", start, world.exported(training, "end"), judge)


# --- shapes and switches


@scenario_of("smollm", "qwen2", "qwen3", "llama", "mistral", "granite")
def shape(world: World, name: str) -> None:
    """A fresh adapter is the base; trained, trainer, sampler, peft and its export agree."""
    examples = [sft_datum(21, 5), sft_datum(6, 6)]
    data = [as_datum(example) for example in examples]
    fresh = world.service.create_lora_training_client(name, rank=4, seed=1)
    base = world.service.create_sampling_client(base_model=name)
    sequence = tokens(120, 3)  # beyond the sliding window, and where scaled positions differ
    shifted = TrainDatum(
        tokens=sequence[:-1],
        inputs={"target_tokens": sequence[1:], "weights": np.ones(119, np.float32)},
    )
    check_agreement(world, name, fresh, base, shifted, world.oracle(name))
    training = world.trained(name)
    start = world.exported(training, "start")
    judge = Judge(world.oracle(name, start))
    sampler = training.save_weights_and_get_sampling_client()
    check_agreement(world, name, training, sampler, shifted, judge.oracle)
    output = training.forward_backward(data, "cross_entropy")
    training.optim_step(types.AdamParams(**ADAM)).result()
    expected = judge.backward("cross_entropy", examples, {})
    world.agree("loss:sum (relative)", output.result().metrics["loss:sum"] / expected, 1.0, 1e-5)
    judge.step(**ADAM)
    check_weights(world, "weights after a step", start, world.exported(training, "end"), judge)


@scenario_of("attn", "mlp", "unembed")
def switch(world: World, part: str) -> None:
    """Only the part that is switched on has weights, and it learns as autograd says."""
    switches = {f"train_{each}": each == part for each in ("attn", "mlp", "unembed")}
    training = world.trained(**switches)
    start = world.exported(training, "start")
    modules = {
        "attn": {"q_proj", "k_proj", "v_proj", "o_proj"},
        "mlp": {"gate_proj", "up_proj", "down_proj"},
        "unembed": {"lm_head"},
    }[part]
    names = load_file(start / "adapter_model.safetensors").keys()
    assert {name.split(".")[-3] for name in names} == modules
    example = sft_datum(12, 7)
    training.forward_backward([as_datum(example)], "cross_entropy").result()
    training.optim_step(types.AdamParams(**ADAM)).result()
    judge = Judge(world.oracle(adapter=start))
    judge.backward("cross_entropy", [example], {})
    judge.step(**ADAM)
    check_weights(world, "weights after a step", start, world.exported(training, "end"), judge)


@scenario_of("smollm", "qwen3")
def a_tied_head_learns_alone(world: World, name: str) -> None:
    """The LoRA of the head does not leak into the input embedding, nor when it is merged."""
    training = world.trained(name, train_attn=False, train_mlp=False)
    folder = world.exported(training)
    sequence = tokens(15, 8)
    sampler = training.save_weights_and_get_sampling_client()
    ours = sampler.compute_logprobs(prompt(sequence)).result()[1:]
    oracle = world.oracle(name, folder)
    plain = scores(world.oracle(name), sequence)
    scored = scores(oracle, sequence)
    world.agree("sampler logprobs, tied head", ours, scored, 1e-4)
    assert float((scored - plain).abs().max()) > 0.05, "the head has moved"
    merged = _merge_untied(world, name, folder)
    logprobs = merged(torch.tensor(sequence)[None]).logits[0].log_softmax(-1)
    targets = torch.tensor(sequence[1:])
    world.agree(
        "merged and untied", ours, logprobs[:-1].gather(1, targets[:, None]).squeeze(1), 1e-4
    )


def _merge_untied(world: World, name: str, folder: Path) -> torch.nn.Module:
    oracle = world.oracle(name, folder)
    head = oracle.model.get_base_model().lm_head.base_layer
    head.weight = torch.nn.Parameter(head.weight.detach().clone())
    oracle.model.get_base_model().config.tie_word_embeddings = False
    return oracle.model.merge_and_unload()


@scenario
def ranks_up_to_the_limit(world: World) -> None:
    limit = world.get("get_server_capabilities")["limits"]["max_rank"]
    for rank in (1, limit):
        training = world.service.create_lora_training_client(MODEL, rank=rank, seed=2)
        assert training.get_info().lora_rank == rank
        training.forward_backward([datum(5)], "cross_entropy")
        assert training.optim_step(types.AdamParams()).result().metrics
    with pytest.raises(tinker.RequestFailedError, match="64 bits") as refusal:
        world.service.create_lora_training_client(MODEL, rank=4, seed=2**70)
    assert is_user_error(refusal.value)
    for rank in (0, -1, limit + 1):
        with pytest.raises(tinker.APIStatusError, match="rank") as failure:
            world.service.create_lora_training_client(MODEL, rank=rank)
        assert 400 <= failure.value.status_code < 500


@scenario
def seeds_reproduce_exactly(world: World) -> None:
    def run(seed: int | None) -> dict[str, torch.Tensor]:
        training = world.service.create_lora_training_client(MODEL, rank=4, seed=seed)
        for step in range(2):
            training.forward_backward([datum(8, step), datum(5, step)], "cross_entropy")
            training.optim_step(types.AdamParams(learning_rate=0.01))
        return load_file(world.exported(training) / "adapter_model.safetensors")

    first, again, other, free = run(5), run(5), run(6), run(None)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)
    assert not all(torch.equal(first[name], free[name]) for name in first)


# --- the optimizer


@scenario_of("plain", "decay", "clip", "clip_above", "betas")
def adamw(world: World, case: str) -> None:
    """Three steps, the second of three accumulated calls, are those of torch.optim.AdamW."""
    changes: dict[str, dict[str, float]] = {
        "plain": {},
        "decay": {"weight_decay": 0.3},
        "clip": {"grad_clip_norm": 0.05},
        "clip_above": {"grad_clip_norm": 1e6},
        "betas": {"beta1": 0.5, "beta2": 0.7, "eps": 1e-1, "learning_rate": 0.05},
    }
    numbers = {**ADAM, **changes[case]}
    training = world.trained()
    start = world.exported(training, "start")
    judge = Judge(world.oracle(adapter=start))
    for calls in (1, 3, 1):
        examples = [sft_datum(7 + n, seed=20 * calls + n) for n in range(calls)]
        for example in examples:
            training.forward_backward([as_datum(example)], "cross_entropy")
            judge.backward("cross_entropy", [example], {})
        norm = judge.norm()
        metrics = training.optim_step(types.AdamParams(**numbers)).result().metrics or {}
        world.agree("grad_norm (relative)", metrics["grad_norm"] / norm, 1.0, 1e-4)
        judge.step(**numbers)
    end = world.exported(training, "end")
    check_weights(world, "weights after three steps", start, end, judge)


@scenario_of("plain", "clip", "beta")
def dimuon(world: World, case: str) -> None:
    """Three steps, the second of two accumulated calls, are those of published Muon."""
    changes: dict[str, dict[str, float]] = {
        "plain": {},
        "clip": {"grad_clip_norm": 0.05},
        "beta": {"beta1": 0.5},
    }
    params = types.DimuonParams(learning_rate=0.01, **changes[case])
    training = world.service.create_lora_training_client(
        MODEL, rank=4, seed=2, optimizer=types.DimuonOptimizerConfig()
    )
    start = world.exported(training, "start")
    judge = Judge(world.oracle(adapter=start))
    muon = PlainMuon(judge.oracle.parameters(), params.learning_rate, params.beta1)
    for calls in (1, 2, 1):
        examples = [sft_datum(7 + n, seed=20 * calls + n) for n in range(calls)]
        for example in examples:
            training.forward_backward([as_datum(example)], "cross_entropy")
            judge.backward("cross_entropy", [example], {})
        norm = judge.norm()
        metrics = training.optim_step(params).result().metrics or {}
        world.agree("grad_norm of dimuon (relative)", metrics["grad_norm"] / norm, 1.0, 1e-3)
        if params.grad_clip_norm:
            torch.nn.utils.clip_grad_norm_(judge.oracle.parameters(), params.grad_clip_norm)
        muon.step()
        for parameter in judge.oracle.parameters():
            parameter.grad = None
    end = world.exported(training, "end")
    check_weights(world, "weights after three dimuon steps", start, end, judge)


@scenario
def the_clients_default_step_is_adamw_with_a_tiny_eps(world: World) -> None:
    training = world.trained()
    start = world.exported(training, "start")
    example = sft_datum(16, 9)
    training.forward_backward([as_datum(example)], "cross_entropy")
    training.optim_step(types.AdamParams()).result()
    judge = Judge(world.oracle(adapter=start))
    judge.backward("cross_entropy", [example], {})
    gradients = {name: p.grad.clone() for name, p in judge.parameters()}
    judge.step(learning_rate=1e-4, beta1=0.9, beta2=0.95, eps=1e-12, weight_decay=0.0)
    ours = load_file(world.exported(training, "end") / "adapter_model.safetensors")
    for name, expected in judge.weights().items():
        certain = gradients[name].abs() > 1e-4  # below, the sign of float32 noise decides
        world.agree("weights, default eps", ours[name][certain], expected[certain], 1e-6)


@scenario
def a_step_without_gradients_is_defined(world: World) -> None:
    training = world.trained()
    before = load_file(world.exported(training, "before") / "adapter_model.safetensors")
    decaying = types.AdamParams(learning_rate=0.1, weight_decay=0.5)
    assert training.optim_step(decaying).result().metrics == {"grad_norm": 0.0, "skipped": 1.0}
    after = load_file(world.exported(training, "after") / "adapter_model.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in before)
    silent = sft_datum(6)
    silent.inputs["weights"] = np.zeros(6, np.float32)
    training.forward_backward([as_datum(silent)], "cross_entropy")
    metrics = training.optim_step(types.AdamParams(learning_rate=0.0)).result().metrics
    assert metrics == {"grad_norm": 0.0}, "a gradient of zero is a gradient"


# --- neighbours and accounts


@scenario
def numbers_do_not_depend_on_who_shares_the_batch(world: World) -> None:
    alone = [_steps(world.trained(seed=seed)) for seed in (1, 2, 3)]
    clients = [world.trained(seed=seed) for seed in (1, 2, 3)]
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(_steps, clients))
    world.agree("losses alone and in company", together, alone, 1e-4)


def _steps(training: tinker.TrainingClient) -> list[float]:
    outputs = []
    for step in range(4):
        outputs.append(
            training.forward_backward([datum(10 + n, step) for n in range(3)], "cross_entropy")
        )
        training.optim_step(types.AdamParams(**ADAM))
    return [output.result().metrics["loss:sum"] for output in outputs]


@scenario
def a_batch_of_several_chunks_is_one_gradient(world: World) -> None:
    """More examples than one request takes: the first chunk is sent last, the sum is the same."""
    training = world.trained()
    start = world.exported(training, "start")
    kinds = [sft_datum(3 + n % 3, n) for n in range(12)]
    examples = [kinds[n % 12] for n in range(1030)]
    output = training.forward_backward([as_datum(each) for each in examples], "cross_entropy")
    metrics = training.optim_step(types.AdamParams(**ADAM)).result().metrics or {}
    assert len(output.result().loss_fn_outputs) == len(examples)
    judge = Judge(world.oracle(adapter=start))
    scores = [judge.logprobs([kind]) for kind in kinds]
    expected_scores = np.concatenate([scores[n % 12] for n in range(1030)])
    world.agree("trainer logprobs", logprobs_of(output.result()), expected_scores, 1e-4)
    for n, kind in enumerate(kinds):
        kind.inputs["weights"] = kind.inputs["weights"] * len(range(n, 1030, 12))
    expected = judge.backward("cross_entropy", kinds, {})
    world.agree("loss:sum (relative)", output.result().metrics["loss:sum"] / expected, 1.0, 1e-5)
    world.agree("grad_norm (relative)", metrics["grad_norm"] / judge.norm(), 1.0, 1e-4)


@scenario
def a_large_result_is_announced_before_it_is_fetched(world: World) -> None:
    """Above a few MiB the client is first told the size, and asks again when it has room."""
    training = world.trained()
    start = world.exported(training)
    example = top_k_datum(500, 2200, seed=3)
    assert example.inputs["target_tokens"].size * 4 > 4 * 2**20
    output = training.forward_backward([as_datum(example)], "cross_entropy").result()
    judge = Judge(world.oracle(adapter=start))
    world.agree("trainer logprobs", logprobs_of(output), judge.logprobs([example]), 1e-4)


@scenario
def equal_examples_are_taken_however_small_they_are_sent(world: World) -> None:
    training = world.trained()
    example = datum(60)
    one = training.forward([example], "cross_entropy").result().metrics["loss:sum"]
    many = training.forward([example] * 1000, "cross_entropy").result().metrics["loss:sum"]
    world.agree("loss:sum (relative)", many / one / 1000, 1.0, 1e-5)


@scenario
def token_counts_are_in_the_record_of_the_run(world: World) -> None:
    training = world.service.create_lora_training_client(
        MODEL, rank=4, user_metadata={"renderer": "x"}
    )
    training.forward_backward([datum(6), datum(9)], "cross_entropy")
    training.forward([datum(5)], "cross_entropy").result()
    training.optim_step(types.AdamParams()).result()
    run = world.get(f"training_runs/{training.model_id}")
    assert run["usage"]["optimizer_steps"] == 1
    assert run["usage"]["tokens"] == 20, "forward passes count too"
    assert run["user_metadata"] == {"renderer": "x"}


if __name__ == "__main__":
    run_scenarios(has_other_shape=True)
