"""Side: LoRA training with Transformers and PEFT, as an experienced user would write it.

float32, sdpa attention, right padding to the longest row of a batch (nothing sorted), LoRA on the
same matrices our default trains (attention, MLP, unembedding), cross entropy summed over the
weighted positions from the logits the model class gives, fused AdamW over the LoRA parameters only.
Large batches are split into micro-batches, to limit memory.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks._sides import serve
from benchmarks._workload import Row
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"]
IGNORED = -100

_state: dict[str, Any] = {}


def load(folder: str, rank: int) -> None:
    """Returns a new adapter and optimizer on the model."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa"
    )
    model = get_peft_model(model, LoraConfig(r=rank, lora_alpha=32, target_modules=TARGETS))
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        trained, lr=1e-4, betas=(0.9, 0.95), eps=1e-12, weight_decay=0.0, fused=True
    )
    _state.update(model=model, optimizer=optimizer)


def step(rows: list[Row], microbatch: int = 0) -> float:
    """Returns the seconds of one training step over the rows, in micro-batches of
    `microbatch` (0: all)."""
    began = time.perf_counter()
    size = microbatch or len(rows)
    for start in range(0, len(rows), size):
        _backward(rows[start : start + size])
    _state["optimizer"].step()
    _state["optimizer"].zero_grad(set_to_none=True)
    return time.perf_counter() - began


def _backward(rows: list[Row]) -> None:
    longest = max(len(weights) for _, weights in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.int64)
    labels = torch.full((len(rows), longest), IGNORED)
    for i, (tokens, weights) in enumerate(rows):
        ids[i, : len(weights)] = torch.tensor(tokens[:-1])
        wanted = torch.tensor(tokens[1:])
        labels[i, : len(weights)] = wanted.masked_fill(torch.tensor(weights) == 0, IGNORED)
    # Right padding needs no mask: causal attention never looks at what comes after.
    logits = _state["model"](input_ids=ids, use_cache=False).logits
    loss = F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), reduction="sum", ignore_index=IGNORED
    )
    loss.backward()


if __name__ == "__main__":
    serve({"load": load, "step": step})
