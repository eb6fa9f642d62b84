"""Many samples at once, bounded and with retries of your own choosing.

Sampling is not retried unless you say so: here transient errors are, five times, and the few that
still fail are counted and left out. Needs a server: `tinkex serve`.
"""

import sys
import time

import tinkex
from tinkex import types

COUNT = int(sys.argv[1]) if sys.argv[1:] else 64
MODEL, MAX_IN_FLIGHT = "smollm2-135m", 16

with tinkex.ServiceClient() as service:
    sampler = service.create_sampling_client(
        base_model=MODEL, retry=tinkex.RetryPolicy(max_retries=5)
    )
    tokenizer = sampler.get_tokenizer()
    prompts = [types.ModelInput.from_text(f"{n} and 1 make", tokenizer) for n in range(COUNT)]
    params = types.SamplingParams(max_tokens=6, temperature=0.7, seed=0)
    started, answers, failed = time.monotonic(), [], []

    # stream() begins the next sample as soon as one ends; outcomes come as they finish.
    for outcome in tinkex.stream(
        lambda prompt: sampler.sample(prompt, 1, params), prompts, max_in_flight=MAX_IN_FLIGHT
    ):
        if outcome.ok:
            answers.append(outcome.unwrap().sequences[0])
        else:
            failed.append(outcome.error)
    spent = time.monotonic() - started
    tokens = sum(len(answer.tokens) for answer in answers)
    print(f"{len(answers)} samples, {tokens} tokens in {spent:.1f} s; {len(failed)} failed")

    # Few and all wanted together: await_many keeps their order and never raises.
    outcomes = tinkex.await_many([sampler.sample(prompt, 1, params) for prompt in prompts[:4]])
    for prompt, outcome in zip(prompts, outcomes, strict=False):
        text = tokenizer.decode(outcome.unwrap().sequences[0].tokens)
        print(tokenizer.decode(prompt.to_ints()), "->", text.strip())
