"""The roofline: the floating-point operations that a training step needs at least, and their cost.

Operations (a multiply-add is two). Per token that takes part, in every layer:

- base matrices: 2 per parameter forward, 2 per parameter for the gradient by the input. The base is
  frozen, so its own gradient is never needed; nor is the gradient by the embeddings, so q, k and v
  of the first layer have no backward.
- LoRA of rank r on a matrix (in, out): 2 r (in + out) forward, as much for the gradient by the
  input and as much for the gradients of A and B (in the first layer's q, k, v nothing flows on
  through A).
- attention, exactly causal: position i meets i + 1 keys; scores and mixing are 2 products of
  2 x head_dim operations per head and pair forward, 4 backward.
- the head (unembedding): forward at each position whose logprob is requested (the protocol returns
  one for every target), backward only where the weight is not zero; its LoRA alike.

Norms, rotations, activations, softmax, the optimizer and all memory traffic count as free: no step
can reach 1.

The price of an operation is the best rate of a matrix product measured in the same run, both
threads: the model's own matrices at 2,048 rows, plain (`x @ W.T`) and prepacked by oneDNN
(`mkldnn._linear_pointwise`), whichever is fastest over all.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks._model import Sizes
from benchmarks._workload import Row


def training_flops(sizes: Sizes, rows: Sequence[Row], rank: int) -> float:
    """Returns the operations of one forward_backward over these rows, with LoRA on every
    matrix and the head."""
    positions = sum(len(weights) for _, weights in rows)
    weighted = sum(sum(weight != 0 for weight in weights) for _, weights in rows)
    matrices = sizes.layer_matrices()
    base = sum(a * b for a, b in matrices.values())
    lora = rank * sum(a + b for a, b in matrices.values())
    layers = sizes.num_layers * (4 * base + 6 * lora)
    # Nothing below the first layer is trained: no gradient by the input of its q, k and v.
    first = sum(2 * a * b + 2 * rank * a for a, b in (matrices[name] for name in "qkv"))
    head = sizes.vocab * sizes.hidden + rank * (sizes.vocab + sizes.hidden)
    head_lora_gradients = 2 * rank * (sizes.vocab + sizes.hidden)
    return float(
        positions * (layers - first)
        + positions * 2 * head
        + weighted * (2 * head + head_lora_gradients)
        + 3 * attention_flops(sizes, [len(weights) for _, weights in rows])
    )


def attention_flops(sizes: Sizes, lengths: Sequence[int]) -> int:
    """Returns forward operations of causal attention over sequences of these
    lengths, all layers."""
    pairs = sum(length * (length + 1) // 2 for length in lengths)
    return sizes.num_layers * sizes.heads * 4 * sizes.head_dim * pairs
