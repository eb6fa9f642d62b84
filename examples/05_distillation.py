"""On-policy distillation: a student learns from a teacher on what the student itself says.

The student samples, the teacher scores those very tokens, and the difference of their logprobs is
the advantage: the reverse KL, token by token. Here the teacher is an adapter trained on one
sentence; any sampler with the same tokenizer will do. Needs a server: `tinkex serve`.
"""

import sys

import tinkex
from tinkex import types

STEPS = int(sys.argv[1]) if sys.argv[1:] else 15
MODEL, GROUP, MAX_TOKENS = "smollm2-135m", 8, 10
PROMPT, LESSON = "My favourite bird is", " the bearded reedling, of course."

with tinkex.ServiceClient() as service:
    teaching = service.create_lora_training_client(base_model=MODEL, rank=8, seed=1)
    tokenizer = teaching.get_tokenizer()
    prompt = list(tokenizer.encode(PROMPT))
    tokens = prompt + list(tokenizer.encode(LESSON))
    lesson = types.Datum(
        types.ModelInput.from_ints(tokens[:-1]),
        {"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)},
    )
    for _ in range(6):
        teaching.forward_backward([lesson], "cross_entropy")
        teaching.optim_step(types.AdamParams(learning_rate=1e-3))
    teacher = teaching.save_weights_and_get_sampling_client()

    training = service.create_lora_training_client(base_model=MODEL, rank=8, seed=0)
    for step in range(STEPS):
        student = training.save_weights_and_get_sampling_client()
        params = types.SamplingParams(max_tokens=MAX_TOKENS, seed=step)
        answers = student.sample(types.ModelInput.from_ints(prompt), GROUP, params).result()
        said = [prompt + answer.tokens for answer in answers.sequences]
        judged = [teacher.compute_logprobs(types.ModelInput.from_ints(each)) for each in said]
        batch, gap, count = [], 0.0, 0
        for answer, scores in zip(answers.sequences, judged, strict=True):
            wanted = scores.result()[len(prompt) :]
            advantages = [t - s for t, s in zip(wanted, answer.logprobs, strict=True)]
            batch.append(types.Datum.from_rollout(prompt, answer, advantages))
            gap, count = gap - sum(advantages), count + len(advantages)
        training.forward_backward(batch, "importance_sampling")
        training.optim_step(types.AdamParams(learning_rate=5e-4)).result()
        text = tokenizer.decode(answers.sequences[0].tokens)
        print(f"step {step:2d}  KL per token {gap / count:.3f}  {text!r}", flush=True)
