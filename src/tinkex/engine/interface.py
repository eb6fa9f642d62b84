"""The interface of engines: plain values in, plain values out. Those of sampling are in
`sampling_values`.

Knows nothing of HTTP, sequence numbers or torch, and tenants only as `cache_scope`. Everything here
is a msgspec struct of numbers, strings and numpy arrays, so that an engine may live in this
process, in another one, or on another machine; adapters cross as folders on a disk or in a depot
that both sides see, never as live objects.

Threads: `submit_sample`, `submit_samples`, `cancel_sample`, `check_fits`, `models`, `adapters` and
`fingerprint` return at once and may be called at any time from any thread, also while a long call
runs. `load_sampler` and `unload_sampler` may take long and may run beside other calls. All other
calls take the engine one at a time; they may be made from several threads and then run one after
the other.

Batches: `forward_backward`, `optim_step` and `submit_samples` answer one entry per request, in
order. A request that is wrong becomes a `RequestError` in its place and its neighbours are served.
"""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from tinkex.engine.errors import EngineError, EngineFailure, EngineUserError, RequestError
from tinkex.engine.sampling_values import (
    FloatArray,
    IntArray,
    SampledSequence,
    SampleRequest,
    SampleResult,
    SamplingProgress,
    SequenceDelta,
    TopK,
)
from tinkex.types.optimizers import TaggedAdamParams, TaggedOptimParams
from tinkex.types.sampling import SamplingParams

__all__ = [
    "ROLES",
    "AdapterInfo",
    "Engine",
    "EngineError",
    "EngineFailure",
    "EngineFingerprint",
    "EngineUserError",
    "FloatArray",
    "IntArray",
    "LoraSpec",
    "ModelInfo",
    "OptimRequest",
    "OptimResult",
    "RequestError",
    "Role",
    "SampleRequest",
    "SampleResult",
    "SampledSequence",
    "SamplingParams",
    "SamplingProgress",
    "SequenceDelta",
    "StateScope",
    "TopK",
    "TrainDatum",
    "TrainRequest",
    "TrainResult",
]

StateScope = Literal["weights", "optimizer", "all"]
"""The part of an adapter that a folder holds or restores.

- "weights": the LoRA weights (what a sampler needs). Loading resets the optimizer and gradients.
- "optimizer": weights, the optimizer's tensors and step count. Loading drops pending gradients.
- "all": that and the pending gradients; what crash recovery needs to go on bit for bit.
"""

Role = Literal["train", "sample"]

ROLES: tuple[Role, ...] = ("train", "sample")
"""The tasks a worker may have; a worker that names no roles has all of them."""


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One base model the engine holds."""

    name: str
    path: str  # folder with config.json, weights and tokenizer; a tokenizer can be loaded from it
    arch: str  # "llama", "qwen3", ...: config.json's model_type
    context_length: int
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_parameters: int
    eos_token_ids: tuple[int, ...]
    max_rank: int
    losses: tuple[str, ...] = ()  # names of the losses it can be trained with

    def is_same_base(self, other: ModelInfo) -> bool:
        """Whether both names stand for one base model, so that adapters of one fit the other."""
        return self.name == other.name or (bool(self.path) and self.path == other.path)


class EngineFingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """Everything an engine's results depend on besides its base models and the requests.

    Engines with equal fingerprints and equal base models give the same bits for the same requests.
    """

    device: str  # as in the options: "cpu", "cuda:0", "null"
    hardware: str = ""  # the processor's or accelerator's name
    dtype: str = ""  # of the base weights
    num_threads: int = 0
    torch_version: str = ""  # empty: an engine without torch
    tinkex_version: str
    kernels: str = ""  # which compiled kernels sample; empty: none


class LoraSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The description of an adapter. The same spec on the same base gives exactly the same start.

    At least one of the three switches must be on. A caller without a seed draws one and keeps it,
    so that the creation can be replayed. The change of a weight is `(alpha / rank) * B @ A`.
    """

    rank: int = 32
    alpha: float = 32.0
    seed: int = 0
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = True


class AdapterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One adapter in memory."""

    adapter_id: str
    model: str
    spec: LoraSpec
    step: int = 0  # optimizer steps taken
    pending_backwards: int = 0  # forward_backward requests since the last optimizer step
    size_bytes: int = 0


class TrainDatum(msgspec.Struct, kw_only=True):
    """One sequence. Position i of `tokens` predicts row i of `inputs["target_tokens"]`.

    `inputs` holds dense arrays by name (sparse ones are made dense by the caller): integers for
    target_tokens, floats for the rest.
    """

    tokens: IntArray
    inputs: dict[str, npt.NDArray[np.generic]]


class TrainRequest(msgspec.Struct, kw_only=True, tag="train"):
    """A forward pass and, with `backward`, gradients added to the adapter's pending ones."""

    adapter_id: str
    data: list[TrainDatum]
    loss_fn: str = "cross_entropy"
    loss_config: dict[str, float | str] = msgspec.field(default_factory=dict)
    backward: bool = True
    custom_loss: bytes = b""  # a client's own loss, encoded; it is computed in place of loss_fn


class TrainResult(msgspec.Struct, kw_only=True, tag="train"):
    """`logprobs[i]` has the shape of datum i's target_tokens; metrics always hold `loss:sum`."""

    logprobs: list[FloatArray]
    metrics: dict[str, float]
    num_tokens: int = 0


class OptimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One step over the pending gradients, of the optimizer whose parameters these are.

    An adapter keeps the optimizer of its first step; parameters of another one are refused. With no
    forward_backward since the last step nothing moves: weights, the optimizer's tensors and step
    count stay, and the metrics say `grad_norm` 0 and `skipped` 1.
    """

    adapter_id: str
    params: TaggedOptimParams = TaggedAdamParams()


class OptimResult(msgspec.Struct, kw_only=True, tag="optim"):
    """Metrics always hold `grad_norm`, the global norm before clipping."""

    metrics: dict[str, float]
    step: int


class Engine(Protocol):
    """A compute engine: base models, adapters on them, training steps, and sampling.

    The properties never block and never raise, whatever the engine does.
    """

    @property
    def is_remote(self) -> bool:
        """Whether the engine reads and writes folders that may not be on the server's disk: it
        uploads what it saves into the depot itself, and fetches from there what it loads."""
        ...

    @property
    def worker(self) -> str:
        """The operators' name for the worker that the engine runs in, with its process."""
        ...

    @property
    def worker_name(self) -> str:
        """The name that the worker gave itself; empty if the server started it."""
        ...

    @property
    def worker_host(self) -> str:
        """The machine that the worker runs on; empty if it is the server's own."""
        ...

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles of the worker. Every engine can do everything; the scheduler heeds them."""
        ...

    @property
    def is_gone(self) -> bool:
        """Whether the engine can answer no call any more, now or later."""
        ...

    @property
    def silent_seconds(self) -> float:
        """Seconds for which the engine has not answered pings; 0 while it answers."""
        ...

    @property
    def busy_seconds(self) -> float:
        """Seconds for which the engine has computed since its start."""
        ...

    def fingerprint(self) -> EngineFingerprint:
        """Everything the engine's results depend on besides its base models and the requests."""
        ...

    def models(self) -> list[ModelInfo]:
        """Returns the base models this engine holds."""
        ...

    def adapters(self) -> list[AdapterInfo]:
        """Returns the adapters in memory, in the order of their creation."""
        ...

    def create_adapter(self, adapter_id: str, model: str, spec: LoraSpec) -> AdapterInfo:
        """Creates an adapter that does not change the base model until it is trained."""
        ...

    def save_adapter(self, adapter_id: str, folder: Path, scope: StateScope = "weights") -> int:
        """Writes the adapter as a PEFT folder at `folder`, whole or not at all; returns its bytes.

        A folder already there is replaced.
        """
        ...

    def start_saving(self, adapter_id: str, folder: Path, scope: StateScope) -> Future[int]:
        """Starts `save_adapter` of the adapter's present state; returns a future of its result."""
        ...

    def load_adapter(
        self, adapter_id: str, model: str, folder: Path, scope: StateScope = "weights"
    ) -> AdapterInfo:
        """Loads the adapter from the folder: creates it, or replaces it if it is in memory."""
        ...

    def unload_adapter(self, adapter_id: str) -> None:
        """Frees the adapter; unknown ids are fine. Snapshots taken from it live on."""
        ...

    def forward_backward(self, batch: list[TrainRequest]) -> list[TrainResult | RequestError]:
        """Returns one result per request, in order; the requests are computed together."""
        ...

    def optim_step(self, batch: list[OptimRequest]) -> list[OptimResult | RequestError]:
        """Returns one result per request, in order. Pending gradients are used up."""
        ...

    def snapshot(self, adapter_id: str, sampler_id: str) -> None:
        """Copies the adapter's weights to sample from; later training does not change the copy."""
        ...

    def load_sampler(self, sampler_id: str, model: str, folder: Path) -> None:
        """Creates a sampler from a saved adapter folder."""
        ...

    def unload_sampler(self, sampler_id: str) -> None:
        """Frees the sampler once its running requests end; unknown ids are fine."""
        ...

    def submit_sample(self, request: SampleRequest) -> None:
        """Queues the request after checking it; its result comes out of `step_sampling`.

        Raises:
            EngineUserError: the request is wrong; nothing was queued.
        """
        ...

    def submit_samples(self, batch: list[SampleRequest]) -> list[RequestError | None]:
        """Queues many requests in one call; for each None, or why it was not queued."""
        ...

    def cancel_sample(self, request_id: str) -> None:
        """Drops the request at the next step; it then has no result. Unknown ids are fine."""
        ...

    def step_sampling(self, budget_s: float = 0.05) -> SamplingProgress:
        """Runs sampling until something finishes, a streamed request has its first token, or about
        `budget_s` has passed."""
        ...

    def check_fits(self, request: TrainRequest | SampleRequest) -> None:
        """Returns if the request is valid and fits into the engine's memory.

        Raises:
            EngineUserError: it is wrong, or too large; the message says by how much.
        """
        ...

    def reset(self) -> None:
        """Forgets all adapters, samplers and samples; the base models stay loaded."""
        ...

    def trim(self) -> None:
        """Frees memory that is kept for speed alone; changes no result."""
        ...

    def close(self) -> None:
        """Frees everything; the engine cannot be used afterwards."""
        ...
