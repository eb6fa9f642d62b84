"""Direct preference optimisation, as a loss of your own computed with PyTorch on this side.

Each pair is two examples, the preferred answer first. The reference is the model before training,
scored once. Needs a server (`tinkex serve`) and torch.
"""

import sys

import torch

import tinkex
from tinkex import types

STEPS = int(sys.argv[1]) if sys.argv[1:] else 10
MODEL, BETA, LEARNING_RATE = "smollm2-135m", 0.1, 5e-4
PAIRS = [
    ("How are you?", "Splendid, thank you!", "Leave me alone."),
    ("Can you help me?", "With pleasure!", "Do it yourself."),
    ("What is the time?", "Let us look together.", "Why should I care?"),
]


def example(tokenizer, prompt: str, answer: str) -> types.Datum:
    messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
    return types.Datum.from_conversation(messages, tokenizer)


def answer_logprob(datum: types.Datum, logprobs: torch.Tensor) -> torch.Tensor:
    """The logprob of the whole answer: the prompt's tokens have weight 0."""
    return (logprobs * datum.loss_fn_inputs["weights"].to_torch()).sum()


with tinkex.ServiceClient() as service:
    training = service.create_lora_training_client(base_model=MODEL, rank=8, seed=0)
    tokenizer = training.get_tokenizer()
    data = [example(tokenizer, ask, answer) for ask, *both in PAIRS for answer in both]
    scored = training.forward(data, "cross_entropy").result().loss_fn_outputs
    before = [
        answer_logprob(datum, out["logprobs"].to_torch())
        for datum, out in zip(data, scored, strict=True)
    ]

    def dpo(data: list[types.Datum], logprobs: list[torch.Tensor]):
        """-log sigmoid of how much the preferred answer gained over the other one."""
        now = [answer_logprob(datum, each) for datum, each in zip(data, logprobs, strict=True)]
        gains = torch.stack([after - start for after, start in zip(now, before, strict=True)])
        margins = BETA * (gains[0::2] - gains[1::2])
        loss = -torch.nn.functional.logsigmoid(margins).sum()
        return loss, {"margin": float(margins.detach().mean())}

    for step in range(STEPS):
        out = training.forward_backward_custom(data, dpo).result()
        training.optim_step(types.AdamParams(learning_rate=LEARNING_RATE)).result()
        print(f"step {step:2d}  loss {out.metrics['loss:sum']:.4f}  {out.metrics['margin']:+.4f}")
