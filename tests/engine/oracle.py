"""The judge of the engine's numbers: transformers + peft, plain autograd, float32.

Nothing here calls the engine's code; adapters reach it as the folders the engine writes.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import peft
import torch
import transformers
from safetensors.torch import load_file

from tinkex.engine.interface import TrainDatum

PREFIX = "base_model.model."


class Oracle:
    """A base model, with the adapter of a PEFT folder if one is given."""

    def __init__(self, base: Path, adapter: Path | None = None) -> None:
        self.model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        if adapter is not None:
            self.model = peft.PeftModel.from_pretrained(self.model, adapter, is_trainable=True)
        self.model.eval()

    def all_logprobs(self, tokens: np.ndarray) -> torch.Tensor:
        """[T, V] logprobs of what follows each token."""
        ids = torch.tensor(np.asarray(tokens), dtype=torch.int64)[None]
        return self.model(ids).logits[0].log_softmax(-1)

    def target_logprobs(self, datum: TrainDatum) -> torch.Tensor:
        """The logprob of each target, in the targets' shape."""
        targets = torch.tensor(datum.inputs["target_tokens"], dtype=torch.int64)
        rows = targets.reshape(len(targets), -1)
        return self.all_logprobs(datum.tokens).gather(1, rows).reshape(targets.shape)

    def loss(self, loss_fn: str, data: list[TrainDatum], **config: float) -> torch.Tensor:
        """The sum of the loss over all datums, by the published formulas."""
        return sum(
            (
                _loss(loss_fn, self.target_logprobs(datum), _tensors(datum), config)
                for datum in data
            ),
            torch.zeros(()),
        )

    def gradients(self) -> dict[str, torch.Tensor]:
        """The LoRA gradients by the engine's tensor names."""
        return {
            name.removeprefix(PREFIX).replace(".default", ""): p.grad
            for name, p in self.model.named_parameters()
            if p.grad is not None
        }

    def parameters(self) -> list[torch.nn.Parameter]:
        return [p for name, p in self.model.named_parameters() if "lora_" in name]

    def weights(self) -> dict[str, torch.Tensor]:
        """The LoRA weights by the engine's tensor names."""
        return {
            name.replace(".default", ""): p.detach()
            for name, p in self.model.named_parameters()
            if "lora_" in name
        }


class PlainMuon:
    """Muon as published, matrix by matrix, in float64."""

    def __init__(
        self, parameters: list[torch.nn.Parameter], learning_rate: float, beta: float
    ) -> None:
        self._parameters, self._rate, self._beta = parameters, learning_rate, beta
        self._averages: dict[int, np.ndarray] = {}

    def step(self) -> None:
        for place, parameter in enumerate(self._parameters):
            assert parameter.grad is not None
            gradient = parameter.grad.double().numpy()
            before = self._averages.get(place, np.zeros_like(gradient))
            average = self._averages[place] = self._beta * before + (1 - self._beta) * gradient
            move = self._orthogonal((1 - self._beta) * gradient + self._beta * average)
            rows, columns = move.shape
            move = move * self._rate * math.sqrt(max(1, rows / columns))
            parameter.data -= torch.tensor(move, dtype=torch.float32)

    @staticmethod
    def _orthogonal(matrix: np.ndarray) -> np.ndarray:
        """The polynomial of each singular value; the singular vectors stay."""
        u, s, v = np.linalg.svd(matrix, full_matrices=False)
        s = s / max(np.sqrt((s**2).sum()), 1e-7)
        for _ in range(5):
            s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
        return (u * s) @ v


def saved_gradients(folder: Path) -> dict[str, torch.Tensor]:
    """The pending gradients the engine wrote."""
    stored = load_file(folder / "gradients.safetensors")
    return {name.removeprefix("gradient."): tensor for name, tensor in stored.items()}


def saved_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The adapter weights the engine wrote."""
    return load_file(folder / "adapter_model.safetensors")


def assert_same(
    ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], rtol: float
) -> None:
    """Every tensor agrees to `rtol` of the largest number in it, and something is not zero."""
    assert ours.keys() == theirs.keys()
    assert any(bool(tensor.any()) for tensor in theirs.values())
    largest = max(float(tensor.abs().max()) for tensor in theirs.values())
    for name, tensor in theirs.items():
        gap = float((ours[name] - tensor).abs().max())
        assert gap <= rtol * max(largest * 1e-2, float(tensor.abs().max())), (name, gap)


def _tensors(datum: TrainDatum) -> dict[str, torch.Tensor]:
    return {
        name: torch.tensor(array, dtype=torch.float32)
        for name, array in datum.inputs.items()
        if name != "target_tokens"
    }


def _loss(
    loss_fn: str, lp: torch.Tensor, inputs: dict[str, torch.Tensor], config: dict[str, float]
) -> torch.Tensor:
    if loss_fn == "cross_entropy":
        return -(inputs["weights"] * lp).sum()
    q, advantage = inputs["logprobs"], inputs["advantages"]
    ratio = (lp - q).exp()
    low = inputs.get("clip_low_threshold", torch.tensor(config.get("clip_low_threshold", 0.8)))
    high = inputs.get("clip_high_threshold", torch.tensor(config.get("clip_high_threshold", 1.2)))
    if loss_fn == "importance_sampling":
        return -(ratio * advantage).sum()
    if loss_fn == "ppo":
        clipped = torch.max(torch.min(ratio, high), low)
        return -torch.min(ratio * advantage, clipped * advantage).sum()
    if loss_fn == "cispo":
        clipped = torch.max(torch.min(ratio, high), low).detach()
        return -(clipped * lp * advantage).sum()
    if loss_fn == "dro":
        return -(lp * advantage - 0.5 * config.get("beta", 0.05) * (lp - q) ** 2).sum()
    assert loss_fn == "gspo"
    mask = inputs["sequence_ratio_mask"] != 0
    sequence_ratio = (lp - q)[mask].mean().exp().detach()
    ratio = sequence_ratio * (lp - lp.detach()).exp()
    clipped = torch.max(torch.min(ratio, high), low)
    return -torch.min(ratio * advantage, clipped * advantage).sum()
