"""What a loss declares about itself.

Everything that validation, documentation and the training step know about a loss is in its `Loss`.
The defaults of the flags are the safe ones: they cost time, never a wrong gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tinkex.errors import ValidationError
from tinkex.losses.batch import LossBatch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "REDUCTIONS",
    "TARGETS",
    "Loss",
    "LossFunction",
    "LossInput",
    "LossMetric",
    "LossOption",
    "MetricsFunction",
    "TargetsFunction",
    "range_text",
]

TARGETS = "target_tokens"
"""The input that every loss has: the tokens whose logprobs it is a function of."""

REDUCTIONS = ("sum", "mean", "min", "max")
"""How a metric combines over targets and requests: the suffix of its name."""

LossFunction = Callable[["Tensor", LossBatch], "Tensor"]
TargetsFunction = Callable[[LossBatch], "Tensor"]
MetricsFunction = Callable[["Tensor", LossBatch], Mapping[str, "Tensor"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInput:
    """An array that a datum brings: a number per target, or one per datum.

    The loss function gets it as `dtype`; "int64" refuses numbers that are not whole. Values outside
    `low`..`high` are refused.
    """

    name: str
    about: str
    is_required: bool = True
    dtype: Literal["float32", "int64"] = "float32"
    per: Literal["target", "datum"] = "target"
    low: float = -math.inf
    high: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOption:
    """A number of `loss_fn_config`, with its default and its range, both ends included.

    `at_most` names another option of the loss that this one must not exceed.
    """

    name: str
    about: str
    default: float
    low: float = -math.inf
    high: float = math.inf
    at_most: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossMetric:
    """A number reported beside `loss:sum`; its name ends in `:sum`, `:mean`, `:min` or `:max`.

    A `:mean` is the mean over datums of the mean over a datum's targets. Clients combine chunks by
    their numbers of datums, so a batch has the same mean however it is cut.
    """

    name: str
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """One loss: its function, what it takes, what it reports, and how it is described.

    `function(lp_P, batch)` gives one number per target from the targets' logprobs; their sum is the
    loss. It may combine targets of one sequence, not of several: how sequences are batched is the
    engine's choice. It runs in several threads at once and must not change its arguments.

    `slope_function` gives the derivative of the sum by each logprob, if that is known without
    autograd. `metrics_function` gives one value per target for each of `metrics`; `metric_targets`
    says which targets count in them, if not all.

    Flags, each a promise that saves time:
    - `is_separable`: a target's loss depends on no other target's logprob.
    - `zero_where`: the name of a required input; where it is 0, the gradient is 0 as well.

    `takes_top_k` lets `target_tokens` have the shape [N, K].

    Raises:
        ValidationError: the declaration contradicts itself.
    """

    name: str
    about: str
    formula: str
    function: LossFunction
    inputs: tuple[LossInput, ...] = ()
    options: tuple[LossOption, ...] = ()
    metrics: tuple[LossMetric, ...] = ()
    metrics_function: MetricsFunction | None = None
    metric_targets: TargetsFunction | None = None
    slope_function: LossFunction | None = None
    takes_top_k: bool = False
    is_separable: bool = False
    zero_where: str | None = None
    notes: str = ""

    def __post_init__(self) -> None:
        for problem in _problems(self):
            raise ValidationError(
                f"The loss {self.name!r} is declared wrongly: {problem}.",
                hint="Change its Loss(...) declaration.",
                code="bad-loss-declaration",
            )

    @property
    def required(self) -> frozenset[str]:
        """Names of the inputs that every datum must bring."""
        return frozenset({TARGETS, *(each.name for each in self.inputs if each.is_required)})

    @property
    def optional(self) -> frozenset[str]:
        """Names of the inputs that a datum may bring."""
        return frozenset(each.name for each in self.inputs if not each.is_required)

    @property
    def needs_old_logprobs(self) -> bool:
        """Whether the logprobs recorded by the sampler are required."""
        return "logprobs" in self.required

    @property
    def needs_advantages(self) -> bool:
        """Whether advantages are required."""
        return "advantages" in self.required

    def input(self, name: str) -> LossInput:
        """The declaration of an input other than `target_tokens`."""
        return next(each for each in self.inputs if each.name == name)

    def config_with(self, given: Mapping[str, float | str]) -> dict[str, float]:
        """The values of all options: the given ones over the defaults."""
        defaults = {each.name: each.default for each in self.options}
        return {**defaults, **{name: float(value) for name, value in given.items()}}


def range_text(low: float, high: float) -> str:
    """A range in words, to follow "must be".

    >>> range_text(0, float("inf")), range_text(0, 1)
    ('0 or more', 'between 0 and 1')
    """
    if math.isinf(low) and math.isinf(high):
        return "a finite number"
    if math.isinf(high):
        return f"{low:g} or more"
    return f"at most {high:g}" if math.isinf(low) else f"between {low:g} and {high:g}"


def _problems(loss: Loss) -> Iterable[str]:
    names = [TARGETS, *(each.name for each in loss.inputs)]
    options = {each.name: each for each in loss.options}
    metrics = ["loss:sum", *(each.name for each in loss.metrics)]
    if not (loss.name.isidentifier() and loss.name.isascii()):
        yield "its name must be letters, digits and underscores, such as 'my_loss'"
    for kind, each in (("input", names), ("option", [o.name for o in loss.options])):
        if len(set(each)) < len(each):
            yield f"an {kind} name occurs twice in {each}"
    if len(set(metrics)) < len(metrics):
        yield f"a metric name occurs twice in {metrics}"
    for option in loss.options:
        if not (option.low <= option.default <= option.high and math.isfinite(option.default)):
            wanted = range_text(option.low, option.high)
            yield f"the default {option.default} of {option.name!r} must be {wanted}"
        if option.at_most is not None and option.at_most not in options:
            yield f"{option.name!r} must not exceed {option.at_most!r}, which is no option"
    for metric in loss.metrics:
        if metric.name.rpartition(":")[2] not in REDUCTIONS:
            yield f"the metric {metric.name!r} must end in one of {', '.join(REDUCTIONS)}"
    if bool(loss.metrics) != (loss.metrics_function is not None):
        yield "metrics and metrics_function go together"
    if loss.zero_where is not None and loss.zero_where not in loss.required - {TARGETS}:
        yield f"zero_where={loss.zero_where!r} is not one of its required inputs"
