"""One base model in memory: the backbone, its description, its memory plan and its sampler."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path

from tinkex.engine.errors import EngineUserError, failure_of
from tinkex.engine.interface import ModelInfo, SampleResult
from tinkex.engine.machine_memory import available_bytes, own_bytes
from tinkex.engine.memory import MemoryPlan
from tinkex.engine.model.config import (
    NotLean,
    bad_model_file,
    parse_config,
    read_eos_token_ids,
    read_json,
)
from tinkex.engine.model.decoder import Backbone, Decoder
from tinkex.engine.model.device import usable_device, usable_dtype
from tinkex.engine.model.hf_weights import load_decoder
from tinkex.engine.native.runner import NativeRunner
from tinkex.engine.options import EngineOptions
from tinkex.engine.runner_choice import runner_for
from tinkex.engine.sampling.kv_cache import bytes_per_token
from tinkex.engine.sampling.sampler import Sampler, SamplerLimits
from tinkex.engine.sampling.stops import load_text_decoder

__all__ = ["BaseModel", "load_base_model"]

_log = logging.getLogger(__name__)

_MIN_ATTENTION_TOKENS = 1024.0


class BaseModel:
    """A loaded base model and everything that exists once per base model."""

    def __init__(
        self,
        folder: Path,
        info: ModelInfo,
        backbone: Backbone,
        options: EngineOptions,
        memory_bytes: int,
    ) -> None:
        self.info = info
        self.backbone = backbone
        self.folder = folder
        self.memory = _plan_memory(backbone, info, options, memory_bytes)
        self.microbatch_tokens = self.memory.microbatch_tokens(options.microbatch_tokens)
        prefill_tokens = self.memory.microbatch_tokens(options.prefill_tokens)
        limits = SamplerLimits(
            cache_tokens=self.memory.cache_tokens,
            prefill_tokens=prefill_tokens,
            beside_tokens=min(prefill_tokens, options.prefill_tokens_beside),
            max_sequences=options.max_sequences,
            stack_bytes=self.memory.adapter_bytes // 4,
            attention_tokens=_attention_tokens(backbone),
            reuses_prompts=not options.deterministic,
        )
        decode = load_text_decoder(folder)
        self.can_decode_text = decode is not None
        runner = runner_for(backbone, limits, with_kernels=options.kernels)
        self.has_kernels = isinstance(runner, NativeRunner)
        self.sampler = Sampler(runner, info, decode or _no_text, limits)

    def step_sampling(self) -> list[SampleResult]:
        """Returns the results of one step of the sampler; if it fails, every request in it ends
        with that failure."""
        try:
            return self.sampler.step()
        except Exception as error:  # a defect of the sampler must not end the adapters in training
            _log.exception("a sampling step failed; its requests end with this error")
            failure = failure_of("Sampling failed", error).to_request_error()
            lost = self.sampler.drop_all()
            return [SampleResult(request_id=request_id, error=failure) for request_id in lost]


def load_base_model(
    name: str, folder: Path, options: EngineOptions, num_to_load: int = 1
) -> BaseModel:
    """Loads the base model stored in the folder, on the device and in the type the options say.

    It may use its share of the memory left once it is loaded: all, or less if this and others,
    `num_to_load` in all, have to live on it.

    Raises:
        EngineUserError: the engine cannot read a model there, or has no such device or type.
    """
    try:
        return _load(name, folder, options, num_to_load)
    except (PermissionError, FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        path = Path(error.filename or folder)
        raise bad_model_file(path, error.strerror or str(error)) from error


def _load(name: str, folder: Path, options: EngineOptions, num_to_load: int) -> BaseModel:
    dtype = usable_dtype(options.dtype)
    device = usable_device(options.device, dtype)
    raw = read_json(folder / "config.json")
    if not raw:
        raise EngineUserError(
            f"{folder} holds no config.json, so there is no model in it. "
            "Give the folder of a Hugging Face model.",
            code="bad-model-folder",
            field="model",
            value=name,
        )
    try:
        spec = parse_config(raw, options.context_length)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        reason = f"{type(error).__name__} {error}"
        raise bad_model_file(folder / "config.json", reason) from error
    backbone: Backbone
    if not isinstance(spec, NotLean):
        backbone = load_decoder(folder, spec, device, dtype)
    else:
        _log.warning("Model %r runs through transformers, more slowly: %s.", name, spec.reason)
        from tinkex.engine.model.transformers_fallback import load_fallback

        backbone = load_fallback(folder, device, dtype)
    info = _info(name, folder, raw, backbone, options)
    memory_bytes = options.memory_bytes or int(_free_bytes(options) * 0.8) // num_to_load
    if isinstance(backbone, Decoder):
        # Sampling needs the second copy of the weights; training's forward is faster with it too.
        # Made after the look at the memory: the plan takes it off itself.
        backbone = backbone.with_packed_weights()
    return BaseModel(folder, info, backbone, options, memory_bytes)


def _info(
    name: str, folder: Path, raw: dict[str, object], backbone: Backbone, options: EngineOptions
) -> ModelInfo:
    context = int(str(raw.get("max_position_embeddings") or raw.get("n_positions") or 2048))
    layers = raw.get("num_hidden_layers") or raw.get("n_layer") or 0
    return ModelInfo(
        name=name,
        path=str(folder),
        arch=str(raw.get("model_type", "unknown")),
        context_length=min(context, options.context_length or context),
        vocab_size=int(backbone.head_VD.shape[0]),
        hidden_size=int(backbone.head_VD.shape[1]),
        num_layers=int(str(layers)),
        num_parameters=backbone.num_parameters,
        eos_token_ids=read_eos_token_ids(folder),
        max_rank=options.max_rank,
    )


def _free_bytes(options: EngineOptions) -> int:
    """Returns the bytes this engine may plan with: all that are free, or the rest of its share.

    Parts are of what was free before any engine started, so that a plan is the same after a
    restart beside engines that use theirs.
    """
    if options.machine_bytes is None:
        return available_bytes() // options.num_engines
    return max(1, options.machine_bytes // options.num_engines - own_bytes())


def _plan_memory(
    backbone: Backbone, info: ModelInfo, options: EngineOptions, total: int
) -> MemoryPlan:
    """Plans memory: half for activations, a quarter each for the cache and for adapters.

    Off the whole comes what sampling takes for weights laid out for few rows.
    """
    spec = backbone.spec if isinstance(backbone, Decoder) else None
    size = backbone.head_VD.element_size()
    wide = 12 * info.hidden_size
    cache_token = 2 * max(1, info.num_layers) * info.hidden_size * size
    if spec is not None:
        heads = spec.num_heads + 2 * spec.num_kv_heads
        wide = (
            (3 + len(spec.norms.names())) * spec.hidden_size
            + (2 * heads + spec.num_heads) * spec.head_dim
            + 3 * spec.intermediate_size * (1 if spec.experts is None else spec.experts.per_token)
        )
        cache_token = bytes_per_token(spec, size)
        total = max(total - info.num_parameters * size, total // 2)
    cache_bytes = options.cache_tokens * cache_token if options.cache_tokens else total // 4
    return MemoryPlan(
        activation_bytes=total // 2,
        cache_bytes=cache_bytes,
        adapter_bytes=total // 4,
        # A quarter more for what a layer's backward holds on top of what was kept for it.
        train_bytes_per_token=max(1, info.num_layers) * wide * size * 5 // 4,
        cache_bytes_per_token=cache_token,
    )


def _attention_tokens(backbone: Backbone) -> float:
    """Returns after how many tokens a token's attention takes as long as the rest of its layer.

    By the number of multiplications; in tiny models a step costs more than these, whatever its
    rows. Where steps of few rows take as long as those of many, as on a GPU, shorter ones would
    gain nothing. Windows are left out: they only make attention cheaper.
    """
    if not isinstance(backbone, Decoder) or backbone.head_VD.device.type != "cpu":
        return math.inf
    spec = backbone.spec
    per_token = 1 if spec.experts is None else spec.experts.per_token
    width = 2 * (spec.query_width + spec.key_width) + 3 * per_token * spec.intermediate_size
    return max(_MIN_ATTENTION_TOKENS, spec.hidden_size * width / (2 * spec.query_width))


def _no_text(ids: Sequence[int]) -> str:
    return ""
