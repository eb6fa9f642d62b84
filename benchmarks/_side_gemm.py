"""Side: the rate at which this machine multiplies the model's matrices. See `_roofline.py`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch
from benchmarks._model import Sizes
from benchmarks._sides import serve
from torch import Tensor

ROWS = 2048

_products: dict[str, tuple[int, Callable[[], Tensor]]] = {}


def prepare(folder: str) -> None:
    """Makes the products: every distinct matrix of the model, plain and prepacked."""
    sizes = Sizes.read(Path(folder))
    shapes = {*sizes.layer_matrices().values(), (sizes.hidden, sizes.vocab)}
    # As engines may fuse them: one product for q, k, v and one for gate, up.
    matrices = sizes.layer_matrices()
    shapes |= {
        (sizes.hidden, sum(matrices[n][1] for n in names)) for names in ("qkv", ("gate", "up"))
    }
    for inputs, outputs in sorted(shapes):
        x, weight = torch.randn(ROWS, inputs), torch.randn(outputs, inputs)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)
        flops = 2 * ROWS * inputs * outputs
        name = f"{inputs}x{outputs}"
        _products[f"{name} plain"] = (flops, lambda x=x, w=weight: x @ w.T)
        _products[f"{name} packed"] = (
            flops,
            lambda x=x, w=packed: torch.ops.mkldnn._linear_pointwise(x, w, None, "none", [], ""),
        )


def rate(seconds: float = 0.02) -> float:
    """Returns the operations per second of the fastest product, each tried for a short while."""
    return max(_rate_of(flops, product, seconds) for flops, product in _products.values())


def _rate_of(flops: int, product: Callable[[], Tensor], seconds: float) -> float:
    product()
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        began = time.perf_counter()
        product()
        now = time.perf_counter()
        best = min(best, now - began)
        if now > end:
            return flops / best


if __name__ == "__main__":
    with torch.inference_mode():
        serve({"prepare": prepare, "rate": rate})
