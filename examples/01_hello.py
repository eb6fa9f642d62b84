"""The smallest whole loop: train on one sentence, sample its end.

Needs a server: `tinkex serve`.
"""

import tinkex
from tinkex import types

SENTENCE = "My favourite bird is the bearded reedling."

with tinkex.ServiceClient() as service:
    training = service.create_lora_training_client(base_model="smollm2-135m", rank=16, seed=0)
    tokenizer = training.get_tokenizer()
    tokens = tokenizer.encode(SENTENCE)
    example = types.Datum(
        types.ModelInput.from_ints(tokens[:-1]),
        {"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)},
    )
    for step in range(8):
        scored = training.forward_backward([example], "cross_entropy")
        training.optim_step(types.AdamParams(learning_rate=1e-3))
        print(
            f"step {step}  loss per token {scored.result().metrics['loss:sum'] / len(tokens):.3f}"
        )
    sampler = training.save_weights_and_get_sampling_client()
    prompt = types.ModelInput.from_text("My favourite bird is", tokenizer)
    answer = sampler.sample(prompt, 1, types.SamplingParams(max_tokens=8, temperature=0)).result()
    print(tokenizer.decode(answer.sequences[0].tokens))
