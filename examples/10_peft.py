"""Take a trained adapter home: download it, open it with peft and transformers, compare.

Needs a server on this machine (`tinkex serve`), and `pip install peft transformers`.
"""

import tempfile
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

import tinkex
from tinkex import types

MODEL = "smollm2-135m"

with tinkex.ServiceClient() as service, tempfile.TemporaryDirectory() as scratch:
    training = service.create_lora_training_client(base_model=MODEL, rank=8, seed=0)
    tokenizer = training.get_tokenizer()
    tokens = list(tokenizer.encode("The quick brown fox jumps over the lazy dog."))
    inputs = {"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)}
    batch = [types.Datum(types.ModelInput.from_ints(tokens[:-1]), inputs)]
    for _ in range(3):
        training.forward_backward(batch, "cross_entropy")
        training.optim_step(types.AdamParams(learning_rate=1e-3))
    ours = training.forward(batch, "cross_entropy").result().loss_fn_outputs[0]["logprobs"]

    exported = training.save_weights_external("home").result().path
    rest = service.create_rest_client()
    adapter = rest.download_checkpoint(exported, Path(scratch) / "adapter").result()
    print("downloaded:", sorted(path.name for path in adapter.iterdir()))

    # On the server's own machine this is the folder of the base model; elsewhere use a hub id.
    base = training.get_info().model_data.tokenizer_id
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = PeftModel.from_pretrained(model, adapter)
    with torch.no_grad():
        logits = model(torch.tensor([tokens[:-1]])).logits[0]
    scores = torch.log_softmax(logits, dim=-1)
    theirs = scores.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
    gap = (ours.to_torch() - theirs).abs().max().item()
    print(f"largest difference of a logprob between the server and peft: {gap:.2e}")
    assert gap < 1e-3
