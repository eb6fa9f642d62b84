"""The demo: a real model learns to talk like a pirate, in about two minutes on a laptop.

Pulls a small model, starts the embedded server, samples, trains a LoRA adapter on the examples in
`data/pirate.jsonl`, samples again, saves, reloads, and stops. Run it with `make demo`.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import tinkex
from tinkex import types
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer
from tinkex.server.models.pull import pull

HERE = Path(__file__).parent
WORK = HERE.parent / ".demo"
MODEL = "smollm2-135m"
QUESTIONS = ("What is the capital of Germany?", "What should I do on a rainy day?")
EPOCHS, BATCH, LEARNING_RATE, RANK = 5, 6, 2e-3, 8


def ask(sampler: tinkex.SamplingClient, tokenizer: Any) -> None:
    params = types.SamplingParams(max_tokens=40, temperature=0.0)
    for question in QUESTIONS:
        messages = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        answer = sampler.sample(types.ModelInput.from_ints(prompt), 1, params).result()
        text = tokenizer.decode(answer.sequences[0].tokens, skip_special_tokens=True)
        print(f"  {question}\n    -> {' '.join(text.split())}")


def train(training: tinkex.TrainingClient, data: list[types.Datum]) -> None:
    """A plain loop: the next batch is on its way while this one's loss is awaited."""
    dice = random.Random(0)
    started, step = time.monotonic(), 0
    steps = EPOCHS * len(data) // BATCH
    for _ in range(EPOCHS):
        dice.shuffle(data)
        for at in range(0, len(data), BATCH):
            batch = data[at : at + BATCH]
            scored = training.forward_backward(batch, "cross_entropy")
            stepped = training.optim_step(types.AdamParams(learning_rate=LEARNING_RATE))
            counted = sum(sum(d.loss_fn_inputs["weights"].data) for d in batch)
            loss = scored.result().metrics["loss:sum"] / counted
            stepped.result()
            step += 1
            spent = time.monotonic() - started
            show(f"  step {step:2d}/{steps}  loss {loss:6.3f}  {spent:5.1f} s", step == steps)


def show(line: str, is_last: bool) -> None:
    """A live line in a terminal, plain lines elsewhere."""
    if sys.stdout.isatty():
        print(f"\r{line}", end="\n" if is_last else "", flush=True)
    else:
        print(line, flush=True)


def main() -> None:
    WORK.mkdir(exist_ok=True)
    folder = pull(MODEL, WORK, lambda line: print(line, flush=True))
    config = ServerConfig(
        data_dir=WORK / "server",
        port=0,
        models=(ServedModel(name=MODEL, source=str(folder)),),
    )
    print("Starting the server ...", flush=True)
    with (
        EmbeddedServer(config) as server,
        tinkex.ServiceClient(base_url=server.base_url, api_key=server.api_key) as service,
    ):
        print(f"It listens on {server.base_url}.\n\nBefore training:", flush=True)
        base = service.create_sampling_client(base_model=MODEL)
        training = service.create_lora_training_client(base_model=MODEL, rank=RANK, seed=0)
        tokenizer = training.get_tokenizer()
        ask(base, tokenizer)
        lines = (HERE / "data" / "pirate.jsonl").read_text().splitlines()
        conversations = [json.loads(line)["messages"] for line in lines]
        data = [types.Datum.from_conversation(each, tokenizer) for each in conversations]
        print(f"\nTraining rank {RANK} on {len(data)} conversations:", flush=True)
        train(training, data)
        print("\nAfter training:")
        ask(training.save_weights_and_get_sampling_client(), tokenizer)
        saved = training.save_state("pirate", overwrite=True).result().path
        print(f"\nSaved as {saved}; loaded anew it still answers:")
        again = service.create_training_client_from_state_with_optimizer(saved)
        ask(again.save_weights_and_get_sampling_client(), tokenizer)
    print("\nDone. The server has stopped; try 'tinkex serve' next.")


if __name__ == "__main__":
    main()
