"""The judge of training: transformers and peft with autograd, and torch's own AdamW."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import tinker
import torch
from safetensors.torch import load_file

from tests.contract.world import (
    World,
    as_datum,
    logprobs_of,
    prompt,
)
from tests.engine.oracle import Oracle
from tinkex.engine.interface import TrainDatum


class Judge:
    """An oracle with gradients added up over calls, and torch's own AdamW."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle
        self._optimizer: torch.optim.AdamW | None = None

    def backward(self, loss_fn: str, data: list[TrainDatum], config: dict[str, float]) -> float:
        """The loss, its gradient added to the pending one."""
        total = self.oracle.loss(loss_fn, data, **config)
        total.backward()
        return float(total.detach())

    def logprobs(self, data: list[TrainDatum]) -> np.ndarray:
        """The logprobs of all targets, one after the other."""
        with torch.no_grad():
            return np.concatenate([self.oracle.target_logprobs(d).numpy().ravel() for d in data])

    def parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        """The LoRA weights by the names in a PEFT file."""
        return [
            (name.replace(".default", ""), p)
            for name, p in self.oracle.model.named_parameters()
            if "lora_" in name
        ]

    def weights(self) -> dict[str, torch.Tensor]:
        """The LoRA weights as numbers."""
        return self.oracle.weights()

    def norm(self) -> float:
        """The global norm of the pending gradient."""
        return math.sqrt(sum(float(p.grad.double().square().sum()) for _, p in self.parameters()))

    def step(self, grad_clip_norm: float = 0.0, **numbers: float) -> None:
        """Clips, takes an AdamW step, forgets the gradient."""
        parameters = [p for _, p in self.parameters()]
        if grad_clip_norm:
            torch.nn.utils.clip_grad_norm_(parameters, grad_clip_norm)
        if self._optimizer is None:
            self._optimizer = torch.optim.AdamW(
                parameters,
                lr=numbers["learning_rate"],
                betas=(numbers["beta1"], numbers["beta2"]),
                eps=numbers["eps"],
                weight_decay=numbers["weight_decay"],
            )
        self._optimizer.step()
        self._optimizer.zero_grad()


def check_weights(
    world: World, what: str, start: Path, end: Path, judge: Judge, atol: float = 5e-5
) -> None:
    before = load_file(start / "adapter_model.safetensors")
    after = load_file(end / "adapter_model.safetensors")
    expected = judge.weights()
    assert after.keys() == expected.keys()
    moved = max(float((after[name] - before[name]).abs().max()) for name in after)
    assert moved > 1e-3, "the step was taken"
    for name, weights in expected.items():
        world.agree(what, after[name], weights, atol)


def scores(oracle: Oracle, sequence: np.ndarray) -> torch.Tensor:
    """The logprob of each token after the first."""
    with torch.no_grad():
        targets = torch.tensor(sequence[1:], dtype=torch.int64)
        return oracle.all_logprobs(sequence)[:-1].gather(1, targets[:, None]).squeeze(1)


def check_agreement(
    world: World,
    name: str,
    training: tinker.TrainingClient,
    sampler: tinker.SamplingClient,
    shifted: TrainDatum,
    oracle: Oracle,
) -> None:
    """Trainer, sampler and oracle give one sequence the same logprobs."""
    trainer = logprobs_of(training.forward([as_datum(shifted)], "cross_entropy").result())
    sequence = np.append(shifted.tokens, shifted.inputs["target_tokens"][-1])
    scored = sampler.compute_logprobs(prompt(sequence)).result()
    assert scored[0] is None
    expected = scores(oracle, sequence)
    world.agree(f"trainer and oracle, {name}", trainer, expected, 1e-4)
    world.agree(f"sampler and oracle, {name}", scored[1:], expected, 1e-4)
    world.agree(f"trainer and sampler, {name}", trainer, scored[1:], 1e-4)
