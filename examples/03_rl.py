"""Reinforcement learning in a plain loop: answers with more digits are rewarded.

Sample a group of answers to each prompt, score them, and push up what was better than its group
(importance sampling, with the group's mean as the baseline). Needs a server: `tinkex serve`.
"""

import statistics
import sys

import tinkex
from tinkex import types

STEPS = int(sys.argv[1]) if sys.argv[1:] else 25
MODEL, GROUP, MAX_TOKENS, LEARNING_RATE = "smollm2-135m", 12, 8, 4e-4
PROMPTS = ("The answer is", "My telephone number is")


def reward(text: str) -> float:
    """The share of digits among the characters that are not blank."""
    letters = [letter for letter in text if not letter.isspace()]
    return sum(letter.isdigit() for letter in letters) / max(1, len(letters))


with tinkex.ServiceClient() as service:
    training = service.create_lora_training_client(base_model=MODEL, rank=8, seed=0)
    tokenizer = training.get_tokenizer()
    prompts = [types.ModelInput.from_text(text, tokenizer) for text in PROMPTS]
    for step in range(STEPS):
        sampler = training.save_weights_and_get_sampling_client()
        params = types.SamplingParams(max_tokens=MAX_TOKENS, seed=step)
        waiting = [sampler.sample(prompt, GROUP, params) for prompt in prompts]
        batch, rewards = [], []
        for prompt, future in zip(prompts, waiting, strict=True):
            answers = future.result().sequences
            texts = [tokenizer.decode(answer.tokens) for answer in answers]
            scores = [reward(text) for text in texts]
            baseline = statistics.mean(scores)
            for answer, score in zip(answers, scores, strict=True):
                batch.append(types.Datum.from_rollout(prompt, answer, score - baseline))
            rewards += scores
        training.forward_backward(batch, "importance_sampling")
        training.optim_step(types.AdamParams(learning_rate=LEARNING_RATE)).result()
        print(f"step {step:2d}  reward {statistics.mean(rewards):.3f}  {texts[0]!r}", flush=True)
