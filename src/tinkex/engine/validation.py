"""Checks of one request against the model it asks for, before any batch is built.

Pure and without torch, so that every engine refuses the same things with the same words. Every
message says what is wrong, which value it was, and what to do.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
import numpy.typing as npt

from tinkex.engine.errors import EngineUserError
from tinkex.engine.interface import LoraSpec, ModelInfo, OptimRequest, TrainDatum, TrainRequest

__all__ = ["LOSSES", "LossSpec", "check_lora", "check_optim", "check_tokens", "check_train"]

_CLIPS = frozenset({"clip_low_threshold", "clip_high_threshold"})


class LossSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a loss takes: arrays per datum, and numbers per request with their defaults."""

    required: frozenset[str]
    optional: frozenset[str] = frozenset()
    config: dict[str, float] = msgspec.field(default_factory=dict)
    takes_top_k: bool = False  # target_tokens may be [N, K]


_POLICY = frozenset({"target_tokens", "logprobs", "advantages"})

LOSSES: dict[str, LossSpec] = {
    "cross_entropy": LossSpec(required=frozenset({"target_tokens", "weights"}), takes_top_k=True),
    "importance_sampling": LossSpec(required=_POLICY),
    "ppo": LossSpec(
        required=_POLICY,
        optional=_CLIPS,
        config={"clip_low_threshold": 0.8, "clip_high_threshold": 1.2},
    ),
    "cispo": LossSpec(
        required=_POLICY,
        optional=_CLIPS,
        config={"clip_low_threshold": 0.0, "clip_high_threshold": 4.0},
    ),
    "dro": LossSpec(required=_POLICY, config={"beta": 0.05}),
    "gspo": LossSpec(
        required=_POLICY | {"sequence_ratio_mask"},
        optional=_CLIPS,
        config={"clip_low_threshold": 0.8, "clip_high_threshold": 1.2},
    ),
}


def check_train(request: TrainRequest, model: ModelInfo) -> None:
    """Returns if the request can be computed on this model.

    Raises:
        EngineUserError: with the field that has to change.
    """
    spec = LOSSES.get(request.loss_fn)
    if spec is None:
        raise EngineUserError(
            f"loss_fn={request.loss_fn!r} is not known here. Use one of: {', '.join(LOSSES)}.",
            code="unknown-loss",
            field="loss_fn",
            value=request.loss_fn,
        )
    _check_loss_config(request, spec)
    if not request.data:
        raise EngineUserError(
            "data is empty. Send at least one datum.", code="empty-data", field="data", value="[]"
        )
    for index, datum in enumerate(request.data):
        _check_datum(datum, request.loss_fn, spec, model, f"data[{index}]")


def check_optim(request: OptimRequest) -> None:
    """Returns if the optimizer's numbers make a defined step.

    Raises:
        EngineUserError: with the number that has to change.
    """
    rules = {
        "learning_rate": (request.learning_rate >= 0, "0 or more"),
        "beta1": (0 <= request.beta1 < 1, "at least 0 and below 1"),
        "beta2": (0 <= request.beta2 < 1, "at least 0 and below 1"),
        "eps": (request.eps > 0, "above 0"),
        "weight_decay": (request.weight_decay >= 0, "0 or more"),
        "grad_clip_norm": (request.grad_clip_norm >= 0, "0 (off) or more"),
    }
    for name, (is_in_range, wanted) in rules.items():
        value = getattr(request, name)
        if not (is_in_range and math.isfinite(value)):
            raise EngineUserError(
                f"{name}={value} is out of range. Use a finite number, {wanted}.",
                code="bad-optimizer-value",
                field=name,
                value=value,
            )


def check_lora(spec: LoraSpec, model: ModelInfo) -> None:
    """Returns if an adapter of this spec can be made for the model.

    Raises:
        EngineUserError: with the field that has to change.
    """
    if not 1 <= spec.rank <= model.max_rank:
        raise EngineUserError(
            f"rank={spec.rank} is outside 1..{model.max_rank} for {model.name}. "
            f"Use a rank of at most {model.max_rank}.",
            code="rank-out-of-range",
            field="rank",
            value=spec.rank,
        )
    if not (spec.train_attn or spec.train_mlp or spec.train_unembed):
        raise EngineUserError(
            "train_attn, train_mlp and train_unembed are all off, so nothing would be trained. "
            "Turn at least one on.",
            code="nothing-to-train",
            field="train_attn",
            value=False,
        )


def check_tokens(tokens: npt.NDArray[np.generic], model: ModelInfo, field: str) -> None:
    """Returns if these are token ids of the model, at least one and no more than its context.

    Raises:
        EngineUserError: with the first id that is out of the vocabulary, or the length.
    """
    if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
        raise EngineUserError(
            f"{field} must be a flat list of integers, got {tokens.dtype} of shape "
            f"{list(tokens.shape)}.",
            code="bad-tokens",
            field=field,
            value=tokens.dtype,
        )
    if tokens.size == 0:
        raise EngineUserError(
            f"{field} is empty. Send at least one token.", code="empty-tokens", field=field
        )
    if tokens.size > model.context_length:
        raise EngineUserError(
            f"{field} has {tokens.size} tokens, above the context length of "
            f"{model.context_length} of {model.name}. Shorten or split it.",
            code="context-too-long",
            field=field,
            value=tokens.size,
        )
    _check_vocabulary(tokens, model, field, lowest=0)


def _check_vocabulary(
    ids: npt.NDArray[np.generic], model: ModelInfo, field: str, lowest: int
) -> None:
    numbers = ids.astype(np.int64, copy=False)
    is_outside = (numbers < lowest) | (numbers >= model.vocab_size)
    if is_outside.any():
        where = tuple(int(i) for i in np.argwhere(is_outside)[0])
        raise EngineUserError(
            f"{field}{list(where)} is token {int(numbers[where])}, outside the vocabulary of "
            f"{model.name} (0..{model.vocab_size - 1}). Was it made with this model's tokenizer?",
            code="token-out-of-vocabulary",
            field=field,
            value=int(numbers[where]),
        )


def _check_loss_config(request: TrainRequest, spec: LossSpec) -> None:
    for name, value in request.loss_config.items():
        field = f"loss_config.{name}"
        if name not in spec.config:
            known = ", ".join(sorted(spec.config)) or "none"
            raise EngineUserError(
                f"loss_fn {request.loss_fn!r} has no config key {name!r}. Known keys: {known}.",
                code="unknown-loss-config",
                field=field,
                value=value,
            )
        if isinstance(value, str) or not math.isfinite(value):
            raise EngineUserError(
                f"{field}={value!r} must be a finite number.",
                code="bad-loss-config",
                field=field,
                value=value,
            )
    merged = {**spec.config, **request.loss_config}
    low, high = merged.get("clip_low_threshold", 0.0), merged.get("clip_high_threshold", math.inf)
    if float(low) > float(high):
        raise EngineUserError(
            f"clip_low_threshold={low} is above clip_high_threshold={high}. Both bound the "
            "probability ratio itself (such as 0.8 and 1.2); swap or mend them.",
            code="bad-loss-config",
            field="loss_config.clip_low_threshold",
            value=low,
        )


def _check_datum(
    datum: TrainDatum, loss_fn: str, spec: LossSpec, model: ModelInfo, where: str
) -> None:
    check_tokens(datum.tokens, model, f"{where}.tokens")
    _check_keys(datum, loss_fn, spec, where)
    targets = datum.inputs["target_tokens"]
    _check_targets(targets, datum.tokens.size, spec.takes_top_k, model, where)
    for name in sorted(datum.inputs.keys() - {"target_tokens"}):
        _check_floats(datum.inputs[name], targets.shape, f"{where}.inputs.{name}")


def _check_keys(datum: TrainDatum, loss_fn: str, spec: LossSpec, where: str) -> None:
    unknown = sorted(datum.inputs.keys() - spec.required - spec.optional)
    if unknown:
        raise EngineUserError(
            f"{where} has the loss input {unknown[0]!r}, which {loss_fn!r} does not take. "
            f"It takes: {', '.join(sorted(spec.required | spec.optional))}. Remove the rest.",
            code="unknown-loss-input",
            field=f"{where}.inputs.{unknown[0]}",
            value=unknown[0],
        )
    missing = sorted(spec.required - datum.inputs.keys())
    if missing:
        raise EngineUserError(
            f"{where} lacks the loss input {missing[0]!r}, which {loss_fn!r} needs. "
            f"It needs: {', '.join(sorted(spec.required))}.",
            code="missing-loss-input",
            field=f"{where}.inputs.{missing[0]}",
        )


def _check_targets(
    targets: npt.NDArray[np.generic],
    num_tokens: int,
    takes_top_k: bool,
    model: ModelInfo,
    where: str,
) -> None:
    field = f"{where}.inputs.target_tokens"
    if not np.issubdtype(targets.dtype, np.integer):
        raise EngineUserError(
            f"{field} must be integers, got {targets.dtype}.",
            code="bad-loss-input",
            field=field,
            value=targets.dtype,
        )
    is_shaped = targets.ndim == 1 or (takes_top_k and targets.ndim == 2 and targets.shape[1] > 0)
    if not is_shaped or targets.shape[0] != num_tokens:
        wanted = f"[{num_tokens}]" + (f" or [{num_tokens}, K]" if takes_top_k else "")
        raise EngineUserError(
            f"{field} has shape {list(targets.shape)}, wanted {wanted}: one row for each of the "
            f"{num_tokens} tokens (position i predicts row i; shift by one before sending).",
            code="wrong-length",
            field=field,
            value=list(targets.shape),
        )
    _check_vocabulary(targets, model, field, lowest=0)


def _check_floats(array: npt.NDArray[np.generic], shape: tuple[int, ...], field: str) -> None:
    if array.shape != shape:
        raise EngineUserError(
            f"{field} has shape {list(array.shape)}, but target_tokens has {list(shape)}. "
            "Give one number per target.",
            code="wrong-length",
            field=field,
            value=list(array.shape),
        )
    if not np.issubdtype(array.dtype, np.number) or not np.isfinite(array).all():
        bad = array[~np.isfinite(array)] if np.issubdtype(array.dtype, np.number) else array
        raise EngineUserError(
            f"{field} holds {bad.flat[0]!s}. Only finite numbers can be trained on; mask or mend "
            "the value before sending.",
            code="not-finite",
            field=field,
            value=str(bad.flat[0]),
        )
