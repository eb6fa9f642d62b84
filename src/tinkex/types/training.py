"""Training requests and results: LoRA config, names of losses, outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec

from tinkex.errors import ValidationError
from tinkex.types._fields import sent
from tinkex.types._model import AnswerModel, Holds, ProtocolModel, RecordModel
from tinkex.types._numbers import make_plain
from tinkex.types.optimizers import AdamOptimizerConfig, AnyOptimizerConfig, read_optimizer_config
from tinkex.types.tensor import TensorData

ModelID = str
RequestID = str
LossFnType = Literal[
    "cross_entropy",
    "importance_sampling",
    "ppo",
    "cispo",
    "dro",
    "gspo",
    "stable_reinforce",
    "custom",
]
LossFnOutput = dict[str, TensorData]

if TYPE_CHECKING:
    _OptimizerConfig = AnyOptimizerConfig
else:  # a dict of one that this client does not know is read by `__post_init__`
    _OptimizerConfig = Annotated[Any, Holds(AnyOptimizerConfig)]

MAX_LORA_ALPHA = 65_536.0
"""The largest alpha of an adapter; its product is scaled by alpha / rank."""


class LoraConfig(ProtocolModel, frozen=True, kw_only=True, omit_defaults=True):
    """Which layers get an adapter, of what rank, and with what alpha.

    An adapter changes a weight by `(alpha / rank) * B @ A`. Without an `alpha` it is the server's:
    32 on Tinkex servers. Only those know the field.

    Raises:
        ValidationError: rank or alpha is out of range, or nothing would be trained.
    """

    beyond_protocol: ClassVar[frozenset[str]] = frozenset({"alpha"})

    rank: int = sent(32)
    seed: int | None = None
    train_unembed: bool = sent(True)
    train_mlp: bool = sent(True)
    train_attn: bool = sent(True)
    alpha: float | None = None

    def __post_init__(self) -> None:
        make_plain(self, ints=("rank", "seed"), floats=("alpha",))
        if self.rank < 1:
            raise ValidationError(f"rank={self.rank} must be at least 1.")
        if self.alpha is not None and not 0 < self.alpha <= MAX_LORA_ALPHA:
            raise ValidationError(
                f"alpha={self.alpha!r} must be above 0 and at most {MAX_LORA_ALPHA:g}."
            )
        if not (self.train_unembed or self.train_mlp or self.train_attn):
            raise ValidationError(
                "Nothing would be trained: train_mlp, train_attn and train_unembed are all False.",
                hint="Switch at least one of them on.",
            )


class ForwardBackwardOutput(RecordModel, frozen=True, kw_only=True):
    """Per datum the loss function's outputs (always `logprobs`), and metrics of the whole batch."""

    loss_fn_output_type: str
    loss_fn_outputs: list[LossFnOutput]
    metrics: dict[str, float] = {}

    def __repr__(self) -> str:
        count = len(self.loss_fn_outputs)
        return f"<ForwardBackwardOutput {count} examples, metrics {self.metrics}>"


class OptimStepResponse(AnswerModel, frozen=True, kw_only=True):
    """The optimizer's metrics of one step."""

    metrics: dict[str, float] | None = None


class CreateModelResponse(AnswerModel, frozen=True, kw_only=True):
    """A training model exists."""

    model_id: ModelID


class SaveWeightsResponse(AnswerModel, frozen=True, kw_only=True):
    """Training state was saved under `path`."""

    type: ClassVar[Literal["save_weights"]] = "save_weights"

    path: str


class SaveWeightsForSamplerResponse(AnswerModel, frozen=True, kw_only=True):
    """Weights for sampling were saved under `path`."""

    type: ClassVar[Literal["save_weights_for_sampler"]] = "save_weights_for_sampler"

    path: str


class SavedForSampler(AnswerModel, frozen=True, kw_only=True):
    """Weights for sampling were saved: named ones have a path, ephemeral ones a session."""

    type: ClassVar[Literal["save_weights_for_sampler"]] = "save_weights_for_sampler"

    path: str | None = None
    sampling_session_id: str | None = None


class SaveWeightsExternalResponse(AnswerModel, frozen=True, kw_only=True):
    """Weights were exported under `path`."""

    type: ClassVar[Literal["save_weights_external"]] = "save_weights_external"

    path: str
    size_bytes: int | None = None


class LoadWeightsResponse(AnswerModel, frozen=True, kw_only=True):
    """Saved weights were loaded."""

    type: ClassVar[Literal["load_weights"]] = "load_weights"

    path: str | None = None
    model_id: ModelID | None = None


class CreateCustomLossResponse(AnswerModel, frozen=True, kw_only=True):
    """An uploaded loss function can be used by this id."""

    loss_id: str


class ModelData(AnswerModel, frozen=True, kw_only=True):
    """The model's base model and tokenizer."""

    arch: str | None = None
    model_name: str | None = None
    tokenizer_id: str | None = None


class GetInfoResponse(AnswerModel, frozen=True, kw_only=True):
    """The description of a training model."""

    type: ClassVar[Literal["get_info"]] = "get_info"
    beyond_protocol: ClassVar[frozenset[str]] = frozenset({"lora_alpha"})

    model_data: ModelData
    model_id: ModelID
    is_lora: bool | None = None
    lora_rank: int | None = None
    lora_alpha: float | None = None  # sent by Tinkex servers
    model_name: str | None = None
    optimizer_config: _OptimizerConfig = AdamOptimizerConfig()

    def __post_init__(self) -> None:
        known = read_optimizer_config(self.optimizer_config)
        msgspec.structs.force_setattr(self, "optimizer_config", known)


class WeightsInfoResponse(AnswerModel, frozen=True, kw_only=True):
    """The training settings of saved weights."""

    beyond_protocol: ClassVar[frozenset[str]] = frozenset({"lora_alpha"})

    base_model: str
    is_lora: bool
    lora_rank: int | None = None
    lora_alpha: float | None = None  # sent by Tinkex servers
    train_unembed: bool | None = None
    train_mlp: bool | None = None
    train_attn: bool | None = None
    optimizer_config: _OptimizerConfig = AdamOptimizerConfig()

    def __post_init__(self) -> None:
        known = read_optimizer_config(self.optimizer_config)
        msgspec.structs.force_setattr(self, "optimizer_config", known)
