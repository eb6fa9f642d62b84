"""Side: sampling with Transformers' `generate`, as an experienced user would write it.

float32, sdpa attention, inference mode, left padding, no processors but the sampling itself. Every
adapter is merged into a copy of the model: faster than an unmerged one, at the price of memory.
Requests of one adapter that wait at the same time share a batch, in order of arrival; a batch runs
to its longest answer, which is how `generate` works.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from benchmarks._sides import serve
from benchmarks._workload import Request
from peft import PeftModel
from transformers import AutoModelForCausalLM

_models: list[Any] = []


def load(folder: str, adapters: list[str]) -> None:
    """Loads one model for each adapter, merged."""
    for adapter in adapters:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa"
        )
        # The adapter changes the head, not the embeddings it shares its weights with.
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
        model.config.tie_word_embeddings = False
        _models.append(PeftModel.from_pretrained(model, adapter).merge_and_unload().eval())


def save_merged(folder: str, number: int = 0) -> None:
    """Writes one of the merged models, for other sides to serve."""
    _models[number].save_pretrained(folder)


def run(requests: list[Request], most: int = 64) -> list[float]:
    """Serves requests as they arrive, `most` sequences at a time; returns
    when each was answered."""
    ends = [0.0] * len(requests)
    waiting = sorted(range(len(requests)), key=lambda i: requests[i]["at"])
    began = time.perf_counter()
    while waiting:
        first = requests[waiting[0]]
        time.sleep(max(0.0, first["at"] - (time.perf_counter() - began)))
        now = time.perf_counter() - began
        batch = _batch(requests, [i for i in waiting if requests[i]["at"] <= now], most)
        _generate([requests[i] for i in batch])
        for i in batch:
            ends[i] = time.perf_counter() - began
        waiting = [i for i in waiting if i not in set(batch)]
    return ends


def _batch(requests: list[Request], here: list[int], most: int) -> list[int]:
    """Returns the waiting requests of the first one's adapter, in order of arrival."""
    adapter, samples = (requests[here[0]][key] for key in ("adapter", "samples"))
    alike = [
        i for i in here if requests[i]["adapter"] == adapter and requests[i]["samples"] == samples
    ]
    return alike[: max(1, most // samples)]


def _generate(batch: list[Request]) -> None:
    longest = max(len(request["tokens"]) for request in batch)
    new = max(request["max_tokens"] for request in batch)
    ids = torch.zeros(len(batch), longest, dtype=torch.int64)
    mask = torch.zeros(len(batch), longest, dtype=torch.int64)
    for i, request in enumerate(batch):
        ids[i, longest - len(request["tokens"]) :] = torch.tensor(request["tokens"])
        mask[i, longest - len(request["tokens"]) :] = 1
    with torch.inference_mode():
        answer = _models[batch[0]["adapter"]].generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            num_return_sequences=batch[0]["samples"],
            max_new_tokens=new,
            eos_token_id=None,
            pad_token_id=0,
        )
    assert answer.shape[1] == longest + new, answer.shape


if __name__ == "__main__":
    serve({"load": load, "run": run, "save_merged": save_merged})
