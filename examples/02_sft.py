"""Supervised fine-tuning on conversations, with loss on the assistant's words alone.

The next batch is on its way while the loss of this one is awaited. Needs a server: `tinkex serve`.
"""

import json
import random
import sys
from pathlib import Path

import tinkex
from tinkex import types

STEPS = int(sys.argv[1]) if sys.argv[1:] else 20
MODEL, BATCH, RANK, LEARNING_RATE = "smollm2-135m", 6, 8, 2e-3
DATA = Path(__file__).parent / "data" / "pirate.jsonl"


def learned_tokens(batch: list[types.Datum]) -> float:
    """How many tokens the loss counts."""
    return sum(sum(datum.loss_fn_inputs["weights"].data) for datum in batch)


with tinkex.ServiceClient() as service:
    training = service.create_lora_training_client(base_model=MODEL, rank=RANK, seed=0)
    tokenizer = training.get_tokenizer()
    lines = DATA.read_text(encoding="utf-8").splitlines()
    conversations = [json.loads(line)["messages"] for line in lines]
    data = [types.Datum.from_conversation(each, tokenizer) for each in conversations]
    dice = random.Random(0)
    waiting = []
    for step in range(STEPS):
        batch = dice.sample(data, BATCH)
        scored = training.forward_backward(batch, "cross_entropy")
        rate = LEARNING_RATE * (1 - step / STEPS)
        training.optim_step(types.AdamParams(learning_rate=rate, grad_clip_norm=1.0))
        waiting.append((step, learned_tokens(batch), scored))
        if len(waiting) > 1:
            done, count, scored = waiting.pop(0)
            print(f"step {done:2d}  loss {scored.result().metrics['loss:sum'] / count:.3f}")
    sampler = training.save_weights_and_get_sampling_client()
    question = [{"role": "user", "content": "What should I do on a rainy day?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True)
    params = types.SamplingParams(max_tokens=40, temperature=0)
    answer = sampler.sample(types.ModelInput.from_ints(prompt), 1, params).result()
    print(tokenizer.decode(answer.sequences[0].tokens, skip_special_tokens=True))
