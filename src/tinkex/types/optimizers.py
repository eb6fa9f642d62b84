"""Optimizers: the parameters of one step of each, and the config that names the one of a run.

An optimizer has a name, which is the tag of both its structs here: the parameters of a step, with
the range of each number, and the config a run is created with. What a step computes is registered
under the same name in `tinkex.engine.training.update_rules`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import msgspec

from tinkex.errors import ValidationError
from tinkex.types._model import AnswerModel, ProtocolModel
from tinkex.types._numbers import make_plain


class Range(NamedTuple):
    """The finite numbers a parameter may have, and their description in words."""

    wanted: str
    lowest: float = 0.0
    below: float = math.inf
    includes_lowest: bool = True

    def holds(self, value: float) -> bool:
        """Returns whether the value is in the range."""
        is_above = value >= self.lowest if self.includes_lowest else value > self.lowest
        return math.isfinite(value) and is_above and value < self.below


_AT_LEAST_ZERO = Range("0 or more")
_ABOVE_ZERO = Range("above 0", includes_lowest=False)
_FRACTION = Range("at least 0 and below 1", below=1.0)
_CLIP = Range("0 (off) or more")


class _Params(ProtocolModel, frozen=True, kw_only=True):
    """Parameters whose numbers are checked when they are made."""

    RANGES: ClassVar[dict[str, Range]] = {}

    def __post_init__(self) -> None:
        make_plain(self, floats=self.RANGES)
        for name, allowed in self.RANGES.items():
            value = getattr(self, name)
            if not allowed.holds(value):
                raise ValidationError(
                    f"{name}={value!r} must be a finite number, {allowed.wanted}."
                )


class AdamParams(_Params, frozen=True, kw_only=True):
    """One AdamW step; `grad_clip_norm=0` means no clipping, weight decay is decoupled.

    Raises:
        ValidationError: a value lies outside its range.
    """

    RANGES: ClassVar[dict[str, Range]] = {
        "learning_rate": _AT_LEAST_ZERO,
        "beta1": _FRACTION,
        "beta2": _FRACTION,
        "eps": _AT_LEAST_ZERO,
        "weight_decay": _AT_LEAST_ZERO,
        "grad_clip_norm": _CLIP,
    }

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


class TaggedAdamParams(AdamParams, frozen=True, kw_only=True, tag_field="type", tag="adamw"):
    """AdamParams where any optimizer's parameters may stand; on the wire they have no tag.

    Its numbers are checked where they are used, which needs an eps above 0.
    """

    type: ClassVar[Literal["adamw"]] = "adamw"

    RANGES: ClassVar[dict[str, Range]] = {**AdamParams.RANGES, "eps": _ABOVE_ZERO}

    def __post_init__(self) -> None:
        pass


class DimuonParams(_Params, frozen=True, kw_only=True, tag_field="type", tag="dimuon"):
    """One step of dimuon; Tinkex servers run it as Muon over each LoRA matrix.

    The hosted service's dimuon is not published, so its numbers may differ from theirs.

    Raises:
        ValidationError: a value lies outside its range.
    """

    type: ClassVar[Literal["dimuon"]] = "dimuon"

    RANGES: ClassVar[dict[str, Range]] = {
        "learning_rate": _AT_LEAST_ZERO,
        "grad_clip_norm": _CLIP,
        "beta1": _FRACTION,
    }

    learning_rate: float
    grad_clip_norm: float = 0.0
    beta1: float = 0.9


class SgdParams(_Params, frozen=True, kw_only=True, tag_field="type", tag="sgd"):
    """One step of gradient descent with momentum, as torch.optim.SGD; for Tinkex servers.

    `weight_decay` is added to the gradient, times the weight, after clipping.

    Raises:
        ValidationError: a value lies outside its range.
    """

    type: ClassVar[Literal["sgd"]] = "sgd"

    RANGES: ClassVar[dict[str, Range]] = {
        "learning_rate": _AT_LEAST_ZERO,
        "momentum": _FRACTION,
        "weight_decay": _AT_LEAST_ZERO,
        "grad_clip_norm": _CLIP,
    }

    learning_rate: float
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


OptimParams = AdamParams | DimuonParams | SgdParams
TaggedOptimParams = TaggedAdamParams | DimuonParams | SgdParams


class AdamOptimizerConfig(ProtocolModel, frozen=True, tag_field="type", tag="adamw"):
    """The model's optimizer is AdamW."""

    type: ClassVar[Literal["adamw"]] = "adamw"


class DimuonOptimizerConfig(
    ProtocolModel, frozen=True, kw_only=True, tag_field="type", tag="dimuon"
):
    """The model's optimizer is dimuon."""

    type: ClassVar[Literal["dimuon"]] = "dimuon"

    version: Literal[1] = 1


class SgdOptimizerConfig(ProtocolModel, frozen=True, tag_field="type", tag="sgd"):
    """The model's optimizer is gradient descent with momentum; for Tinkex servers."""

    type: ClassVar[Literal["sgd"]] = "sgd"


OptimizerConfig = AdamOptimizerConfig | DimuonOptimizerConfig | SgdOptimizerConfig


class OtherOptimizerConfig(AnswerModel, frozen=True, kw_only=True):
    """The model's optimizer is one that this client does not know: its name, and the rest."""

    type: str
    settings: dict[str, Any] = {}


AnyOptimizerConfig = OptimizerConfig | OtherOptimizerConfig

PROTOCOL_OPTIMIZERS = ("adamw", "dimuon")
"""The optimizers of the protocol; a server may announce others."""


def tagged(params: OptimParams) -> TaggedOptimParams:
    """Returns the same parameters, with the tag of their optimizer."""
    if not isinstance(params, AdamParams):
        return params
    return TaggedAdamParams(**msgspec.structs.asdict(params))


def optimizer_name(value: OptimParams | OptimizerConfig) -> str:
    """Returns the name of the optimizer of parameters or of a config."""
    if isinstance(value, AdamParams):
        return "adamw"
    return str(value.__struct_config__.tag)


def read_optimizer_config(given: Any) -> AnyOptimizerConfig:
    """Reads the config in a server's response; optimizers are an open set.

    Raises:
        ValidationError: it names no optimizer.
    """
    if isinstance(given, AnyOptimizerConfig):
        return given
    if not isinstance(given, Mapping) or not isinstance(given.get("type"), str):
        raise ValidationError(f"optimizer_config={given!r:.80} must be a dict with a type.")
    try:
        found: OptimizerConfig = msgspec.convert(dict(given), OptimizerConfig)
        return found
    except msgspec.ValidationError:
        settings = {str(name): value for name, value in given.items() if name != "type"}
        return OtherOptimizerConfig(type=given["type"], settings=settings)


ALL_OPTIMIZERS: tuple[str, ...] = tuple(
    str(config.__struct_config__.tag) for config in get_args(OptimizerConfig)
)
"""The optimizers that servers of this version have."""
