"""Uploaded losses give what the client's own autograd gives, and stay within their bounds."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.engine.custom_loss.graphs import (
    INPUT,
    PLACEHOLDER,
    function,
    loss_of,
    method,
    output,
    random_node,
    ref,
    traced,
)
from tests.unit.client import losses
from tinkex.engine.custom_loss import bounds
from tinkex.engine.custom_loss.bounds import WorkBudget
from tinkex.engine.custom_loss.declaration import UploadedLoss, encode_loss
from tinkex.engine.custom_loss.program import loss_program
from tinkex.engine.errors import EngineUserError
from tinkex.types.custom_loss import CustomLossGraph

NUM_TARGETS = 40


def ppo(logprobs: Any, old: Any, advantages: Any) -> Any:
    ratio = torch.exp(logprobs - old)
    worst = torch.minimum(ratio * advantages, torch.clamp(ratio, 0.8, 1.2) * advantages)
    share = ((ratio < 0.8) | (ratio > 1.2)).float().mean()
    return -worst.sum() / math.sqrt(logprobs.shape[0]), {"custom/clipped:mean": share}


def focal(logprobs: Any, weights: Any) -> Any:
    return -(weights * (1 - logprobs.exp()) ** 2 * logprobs).sum(), {}


def entropy_bonus(logprobs: Any, weights: Any) -> Any:
    surprise = -(logprobs.exp() * logprobs).sum()
    return -(logprobs @ weights) - 0.01 * surprise, {"custom/entropy:mean": surprise.detach()}


def margin(logprobs: Any, weights: Any) -> Any:
    gap = logprobs[weights > 0.5].sum() - logprobs[weights <= 0.5].sum()
    return F.relu(1 - gap) + F.softplus(-gap) - F.logsigmoid(gap), {"custom/margin:mean": gap}


def ranking(logprobs: Any, weights: Any) -> Any:
    best, order = torch.topk(logprobs, 5)
    pairs = torch.outer(best, torch.ones_like(best)) - best[None, :]
    picked = torch.gather(weights, 0, order)
    masked = torch.where(weights > 0.5, logprobs, torch.zeros_like(logprobs))
    rest = F.huber_loss(logprobs, weights, reduction="none", delta=0.3).mean()
    return pairs.tril().sum() + (picked * best).sum() + masked.std() + rest, {}


CASES = [
    (ppo, {"logprobs": 1, "old": 1, "advantages": 1}),
    (focal, {"logprobs": 1, "weights": 1}),
    (entropy_bonus, {"logprobs": 1, "weights": 1}),
    (margin, {"logprobs": 1, "weights": 1}),
    (ranking, {"logprobs": 1, "weights": 1}),
    *(case for case in losses.TRACEABLE if case[0] is not losses.every_kind_of_argument),
]


def tensors(ranks: dict[str, int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    shapes = {0: (), 1: (NUM_TARGETS,), 2: (NUM_TARGETS, 3)}
    return {name: rng.random(shapes[rank], np.float32) for name, rank in ranks.items()}


@pytest.mark.filterwarnings("ignore:Converting a tensor")  # one of the losses calls math.exp
@pytest.mark.parametrize(("fn", "ranks"), CASES, ids=lambda each: getattr(each, "__name__", ""))
def test_value_slope_and_metrics_are_those_of_autograd(fn: Any, ranks: Any) -> None:
    inputs = tensors(ranks)
    leaf = torch.from_numpy(-5 * inputs.pop("logprobs")).requires_grad_(True)
    expected, metrics = fn(leaf, *(torch.from_numpy(np.asarray(each)) for each in inputs.values()))
    expected.backward()

    found = loss_program(traced(fn, ranks)).run(leaf, inputs, WorkBudget())

    assert found.loss == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(found.slope, leaf.grad, rtol=1e-6, atol=0)
    assert found.metrics == pytest.approx({k: float(v.detach()) for k, v in metrics.items()})


def test_every_form_of_argument_is_read() -> None:
    fn, ranks = losses.TRACEABLE[2]
    assert fn is losses.every_kind_of_argument
    found = loss_program(traced(fn, ranks)).run(torch.rand(9), {}, WorkBudget())
    assert math.isnan(found.loss)  # as the function says: it clamps to NaN


def test_a_scalar_may_come_as_a_list_of_one_number() -> None:
    def scaled(logprobs: Any, beta: Any) -> Any:
        return logprobs.sum() * beta, {"custom/rank:sum": beta.dim()}

    program = loss_program(traced(scaled, {"logprobs": 1, "beta": 0}))
    found = program.run(torch.ones(3), {"beta": np.array([2.0], np.float32)}, WorkBudget())
    assert (found.loss, found.metrics) == (6.0, {"custom/rank:sum": 0.0})


def run(loss: UploadedLoss, length: int = 1000) -> Any:
    return loss_program(encode_loss(loss)).run(-torch.rand(length), {}, WorkBudget())


MINUS_ONE = {"tuple": [-1, 1]}
BOMBS = {
    "outer product": [function("a", "torch.outer", ref("lp"), ref("lp")),
                      method("b", "flatten", ref("a")),
                      function("c", "torch.outer", ref("b"), ref("b"))],
    "expand": [method("a", "expand", ref("lp"), 10**9, -1)],
    "repeat": [method("a", "repeat", ref("lp"), 2**40)],
    "broadcast": [method("a", "expand", ref("lp"), 4000, -1),
                  method("b", "unsqueeze", ref("a"), 2),
                  function("c", "operator.mul", ref("b"), ref("lp"))],
    "zeros": [function("a", "torch.zeros", 10**6, 10**6)],
    "full": [function("a", "torch.full", {"tuple": [2**31, 4]}, 1.0)],
    "arange": [function("a", "torch.arange", 2**62)],
    "new_zeros": [method("a", "new_zeros", ref("lp"), size=[10**8])],
    "cat that doubles": [
        function(f"c{n}", "torch.cat", [ref(f"c{n - 1}" if n else "lp")] * 2) for n in range(30)
    ],
    "product of matrices": [function("a", "torch.outer", ref("lp"), ref("lp")),
                            *(function(f"m{n}", "torch.matmul", ref("a"), ref("a"))
                              for n in range(3))],
    "index that grows": [function("i", "torch.arange", 1000),
                         function("a", "torch.outer", ref("lp"), ref("lp")),
                         method("j", "repeat", ref("i"), 100),
                         function("b", "operator.getitem", ref("a"), ref("j"))],
    "many large results": [function("a", "torch.outer", ref("lp"), ref("lp")),
                           *(function(f"e{n}", "torch.exp", ref("a")) for n in range(40))],
}  # fmt: skip


@pytest.mark.parametrize("case", BOMBS)
def test_what_would_grow_too_large_is_refused_before_it_is_made(case: str) -> None:
    last = BOMBS[case][-1].name
    with pytest.raises(EngineUserError, match="too large") as refused:
        run(loss_of(*BOMBS[case], method("sum", "sum", ref(last))))
    assert refused.value.code == "custom-loss-too-large"


def test_a_request_has_a_bound_of_operations_and_of_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = loss_program(encode_loss(loss_of(method("sum", "sum", ref("lp")))))
    monkeypatch.setattr(bounds, "MAX_CALLS", 2)
    budget = WorkBudget()
    for _ in range(2):
        program.run(torch.rand(3), {}, budget)
    with pytest.raises(EngineUserError, match="more than 2 operations"):
        program.run(torch.rand(3), {}, budget)
    monkeypatch.setattr(bounds, "MAX_REQUEST_VALUES", 5)
    with pytest.raises(EngineUserError, match="brings the request above"):
        program.run(torch.rand(6), {}, WorkBudget())


REFUSED_VALUES = {
    "whole numbers divided": [
        method("i", "long", ref("lp")),
        function("d", "torch.div", ref("i"), -1, rounding_mode="trunc"),
    ],
    "a power of numbers": [function("p", "operator.pow", 10, 10**9)],
    "a number of more than 64 bits": [function("p", "operator.mul", 2**62, 2**62)],
    "a division by zero": [function("p", "operator.floordiv", 1, 0)],
    "an overflow": [function("p", "math.exp", 1000)],
    "a text times a number": [function("p", "operator.mul", "sum", 2**60)],
    "tuples added": [
        function("s", "getattr", ref("lp"), "shape"),
        function("p", "operator.add", ref("s"), ref("s")),
    ],
    "many dimensions": [method("p", "reshape", ref("lp"), *[1] * 9)],
    "shapes that do not fit": [method("p", "reshape", ref("lp"), 7)],
    "an item of a number": [function("p", "operator.getitem", 3, 0)],
    "several tensors as an index": [
        function("i", "torch.arange", 3),
        function("p", "operator.getitem", ref("lp"), {"tuple": [ref("i"), ref("i")]}),
    ],
    "positions beside other indices": [
        function("i", "torch.arange", 3),
        function("p", "operator.getitem", ref("lp"), {"tuple": [ref("i"), None]}),
    ],
    "an index outside": [
        function("i", "torch.full", {"tuple": [2]}, 10**6),
        function("p", "operator.getitem", ref("lp"), ref("i")),
    ],
    "a method of a number": [
        method("n", "numel", ref("lp")), method("p", "exp", ref("n")),
    ],
    "an attribute of a number": [
        method("n", "numel", ref("lp")), function("p", "getattr", ref("n"), "shape"),
    ],
    "a condition alone": [function("p", "torch.where", ref("lp"))],
    "a size that is a float": [method("p", "repeat", ref("lp"), 1.5)],
    "bits of another type": [method("p", "view", ref("lp"), {"dtype": "int32"})],
    "fewer sizes": [method("p", "expand", ref("lp"))],
    "a float range": [function("p", "torch.arange", 0, 1, 1e-12)],
    "a batch of matrices": [
        method("m", "reshape", ref("lp"), 10, 10, 10),
        function("p", "torch.matmul", ref("m"), ref("m")),
    ],
    "one factor": [function("p", "torch.matmul", ref("lp"), 2)],
    "no index": [function("p", "torch.gather", ref("lp"), 0)],
    "repeat of a number": [function("p", "torch.broadcast_to", 2, {"tuple": [2]})],
    "a norm of a matrix": [
        method("m", "reshape", ref("lp"), 10, 100),
        function("p", "torch.linalg.norm", ref("m"), 2),
    ],
    "a slice as an operand": [function("p", "operator.add", ref("lp"), {"slice": [1, 2, 3]})],
    "a division of texts": [function("p", "operator.mod", "sum", 2)],
    "an item of a tensor with keywords": [function("p", "operator.getitem", ref("lp"), k=1)],
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED_VALUES)
def test_what_fails_on_its_values_names_the_node(case: str) -> None:
    nodes = REFUSED_VALUES[case]
    with pytest.raises(EngineUserError) as refused:
        run(loss_of(*nodes, method("sum", "sum", ref("lp"))))
    assert refused.value.code == "custom-loss-failed"
    assert f"{nodes[-1].name} ({nodes[-1].target})" in str(refused.value)


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([method("p", "exp", ref("lp"))], "must be a scalar"),
        ([method("p", "detach", ref("lp")), method("q", "sum", ref("p"))], "not depend"),
        ([method("p", "numel", ref("lp"))], "not depend"),
        ([function("p", "torch.zeros", 1), method("q", "sum", ref("p"))], "not depend"),
        ([method("p", "size", ref("lp"))], "must be a scalar"),
    ],
)
def test_what_is_no_loss_is_refused(nodes: Any, words: str) -> None:
    with pytest.raises(EngineUserError, match=words):
        run(loss_of(*nodes))


def test_a_metric_that_is_no_scalar_is_refused() -> None:
    nodes = [PLACEHOLDER, method("s", "sum", ref("lp")), output("s", all="lp")]
    with pytest.raises(EngineUserError, match="custom/all:sum must be a scalar"):
        run(UploadedLoss((INPUT,), CustomLossGraph(nodes=nodes)))


def test_the_request_is_not_changed_by_its_loss() -> None:
    def identity(logprobs: Any, weights: Any) -> Any:
        return (logprobs * weights).sum(), {}

    weights = np.ones(5, np.float32)
    weights.setflags(write=False)
    program = loss_program(traced(identity, {"logprobs": 1, "weights": 1}))
    logprobs = torch.rand(5)
    before = logprobs.clone()
    assert not program.run(logprobs, {"weights": weights}, WorkBudget()).slope.requires_grad
    assert torch.equal(before, logprobs)
    assert not logprobs.requires_grad


def outcome(loss: UploadedLoss) -> str:
    """The code of the refusal; empty if there is none."""
    try:
        run(loss, length=6)
    except EngineUserError as error:
        return error.code
    return ""


@pytest.mark.filterwarnings("ignore")  # of torch, about odd arguments
@pytest.mark.parametrize("seed", range(25))
def test_a_random_walk_over_all_operations_ends_in_a_loss_or_a_refusal(seed: int) -> None:
    """Nothing but a typed refusal comes out, whatever is done with whatever."""
    draw = random.Random(seed)
    kept = [method("i", "long", ref("lp")), function("m", "operator.gt", ref("lp"), -0.5)]
    for index in range(40):
        node = random_node(draw, f"n{index}", ["lp", *(each.name for each in kept)])
        code = outcome(loss_of(*kept, node, method("sum", "sum", ref("lp"))))
        assert code in {"", "bad-custom-loss", "custom-loss-failed", "custom-loss-too-large"}
        if not code:
            kept.append(node)
    assert len(kept) > 2
