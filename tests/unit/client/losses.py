"""Custom losses for both clients, and those that neither can trace."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

OUTSIDE = torch.ones(3)


def neg_ll(logprobs: Any, weights: Any) -> Any:
    loss = -(logprobs * weights).sum()
    return loss, {"custom/neg_ll:sum": loss, "custom/mean_weight:mean": weights.mean()}


def clipped(logprobs: Any, advantages: Any, old: Any) -> Any:
    ratio = torch.exp(logprobs - old)
    worst = torch.minimum(ratio * advantages, torch.clamp(ratio, 0.8, 1.2) * advantages)
    return -worst.sum(), {"custom/ratio.max:mean": ratio.max(dim=0).values}


def every_kind_of_argument(logprobs: Any) -> Any:
    narrow = logprobs.to(torch.float32).to(device=torch.device("cpu"))
    plain = narrow.to(memory_format=torch.contiguous_format)
    zeros = torch.zeros_like(plain, dtype=torch.bfloat16, layout=torch.strided)
    part = plain[..., 1:2:1] + plain[None, :].sum()
    limits = zeros.masked_fill(plain > 0, float("-inf")).clamp(min=float("nan"), max=float("inf"))
    joined = torch.cat([part, part], dim=-1)
    huber = F.huber_loss(joined, joined, reduction="sum", delta=1.0)
    loss = huber + joined.sum(dim=(0,), keepdim=True).sum() + limits.sum() * math.pi
    return loss, {"custom/a-b_c.d/e:sum": joined.sum()}


def shapes_and_operators(logprobs: Any) -> Any:
    mean = abs(logprobs).sum() / logprobs.shape[0] - torch.special.entr(logprobs.exp()).sum()
    return math.exp(mean) + sum([logprobs.mean(), logprobs.mean()]), {}


def scaled(logprobs: Any, beta: Any) -> Any:
    return (logprobs * beta).sum() ** 2, {"custom/beta:mean": beta}


def rows(logprobs: Any, distribution: Any) -> Any:
    return -(distribution * logprobs).sum(), {}


TRACEABLE = [
    (neg_ll, {"logprobs": 1, "weights": 1}),
    (clipped, {"logprobs": 1, "advantages": 1, "old": 1}),
    (every_kind_of_argument, {"logprobs": 1}),
    (shapes_and_operators, {"logprobs": 1}),
    (scaled, {"logprobs": 1, "beta": 0}),
    (rows, {"logprobs": 2, "distribution": 2}),
]


def branches(logprobs: Any) -> Any:
    return (logprobs.sum() if logprobs.sum() > 0 else -logprobs.sum()), {}


def uses_a_tensor_from_outside(logprobs: Any) -> Any:
    return (logprobs * OUTSIDE).sum(), {}


def uses_a_module(logprobs: Any) -> Any:
    return torch.nn.ReLU()(logprobs).sum(), {}


def uses_numpy(logprobs: Any) -> Any:
    import numpy as np

    return logprobs.sum() * np.float32(2), {}


def uses_a_complex_number(logprobs: Any) -> Any:
    return (logprobs * 1j).real.sum(), {}


def loops_over_values(logprobs: Any) -> Any:
    return sum(value for value in logprobs), {}


def raises(logprobs: Any) -> Any:
    raise KeyError("oops")


def returns_one_value(logprobs: Any) -> Any:
    return logprobs.sum()


def returns_a_number(logprobs: Any) -> Any:
    return 1.0, {}


def returns_a_list_of_metrics(logprobs: Any) -> Any:
    return logprobs.sum(), [1]


def misnames_a_metric(logprobs: Any) -> Any:
    return logprobs.sum(), {"Loss": logprobs.sum()}


def misreduces_a_metric(logprobs: Any) -> Any:
    return logprobs.sum(), {"custom/x:max": logprobs.sum()}


def has_a_number_as_metric(logprobs: Any) -> Any:
    return logprobs.sum(), {"custom/x:sum": 1.0}


def has_a_long_metric_name(logprobs: Any) -> Any:
    return logprobs.sum(), {f"custom/{'x' * 65}:sum": logprobs.sum()}


UNTRACEABLE = [
    branches,
    uses_a_tensor_from_outside,
    uses_a_module,
    uses_numpy,
    uses_a_complex_number,
    loops_over_values,
    raises,
    returns_one_value,
    returns_a_number,
    returns_a_list_of_metrics,
    misnames_a_metric,
    misreduces_a_metric,
    has_a_number_as_metric,
    has_a_long_metric_name,
]


def takes_no_logprobs(weights: Any) -> Any:
    return weights.sum(), {}


def has_a_default(logprobs: Any, weights: Any = 1) -> Any:
    return (logprobs * weights).sum(), {}


def has_keywords(logprobs: Any, *, weights: Any) -> Any:
    return (logprobs * weights).sum(), {}


def has_stars(logprobs: Any, *weights: Any) -> Any:
    return (logprobs * weights[0]).sum(), {}


def shouts(logprobs: Any, W: Any) -> Any:
    return (logprobs * W).sum(), {}


def takes_too_many(
    logprobs: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any, i: Any,
    j: Any, k: Any, m: Any, n: Any, o: Any, p: Any, q: Any,
) -> Any:  # fmt: skip
    return logprobs.sum(), {}


MISDECLARED = [
    (takes_no_logprobs, {"weights": 1}),
    (has_a_default, {"logprobs": 1, "weights": 1}),
    (has_keywords, {"logprobs": 1, "weights": 1}),
    (has_stars, {"logprobs": 1, "weights": 1}),
    (shouts, {"logprobs": 1, "W": 1}),
    (takes_too_many, {"logprobs": 1, **dict.fromkeys("abcdefghijkmnopq", 1)}),
    (neg_ll, {"logprobs": 1}),
    (neg_ll, {"logprobs": 1, "weights": 1, "more": 1}),
    (neg_ll, {"logprobs": 3, "weights": 1}),
    (neg_ll, {"logprobs": 0, "weights": 1}),
]
