"""An engine without numerics: every number is a hash of its request, so it needs no torch.

For load and fault tests of everything around an engine. It keeps the interface's promises that
can be kept without a model: the same operations in the same order give the same numbers, state
survives save and load, snapshots do not change, bad requests are refused with the real words.
It does not know tokens' meaning, and its losses do not fall.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path

import msgspec
import numpy as np

from tinkex import crashpoints
from tinkex.engine.busy_lock import BusyLock
from tinkex.engine.errors import EngineError, EngineUserError, unknown_name
from tinkex.engine.in_process import InProcessEngine
from tinkex.engine.interface import (
    AdapterInfo,
    EngineFingerprint,
    LoraSpec,
    ModelInfo,
    OptimRequest,
    OptimResult,
    RequestError,
    SampleRequest,
    SampleResult,
    SamplingProgress,
    StateScope,
    TrainRequest,
    TrainResult,
)
from tinkex.engine.null_numbers import (
    digest,
    hashed_logprobs,
    hashed_prompt_scores,
    hashed_sequence,
    whole_sequences,
)
from tinkex.engine.sampling.validation import check_sample, max_new_tokens
from tinkex.engine.training.validation import check_train
from tinkex.engine.validation import check_lora, check_optim, check_same_optimizer
from tinkex.files.atomic_folder import folder_size_bytes, verify_folder, write_folder
from tinkex.files.file_thread import FileThread
from tinkex.losses import BUILT_IN, Loss
from tinkex.types.optimizers import optimizer_name
from tinkex.version import __version__

__all__ = ["NullEngine"]

_MAX_NEW_TOKENS = 16  # what a request without max_tokens gets, so that load tests stay short


class _State(msgspec.Struct, kw_only=True):
    """The whole state of a null adapter: digests in place of weights and gradients."""

    model: str
    spec: LoraSpec
    weights: str
    gradients: str = ""
    pending_backwards: int = 0
    step: int = 0
    optimizer: str | None = None  # of the steps so far


class NullEngine(InProcessEngine):
    """A deterministic stand-in for a real engine.

    `delay_s` is slept in every forward_backward, optim_step and `step_sampling` that has work.
    """

    def __init__(
        self,
        models: tuple[str, ...] = ("null",),
        *,
        vocab_size: int = 256,
        context_length: int = 32_768,
        delay_s: float = 0.0,
        losses: Mapping[str, Loss] = BUILT_IN,
    ) -> None:
        infos = [_model_info(name, vocab_size, context_length, tuple(losses)) for name in models]
        self._models = {info.name: info for info in infos}
        self._losses = losses
        self._delay_s = delay_s
        self._adapters: dict[str, _State] = {}
        self._samplers: dict[str, tuple[str, str]] = {}
        self._queue: OrderedDict[str, SampleRequest] = OrderedDict()
        self._lock = threading.RLock()
        self._compute = BusyLock()
        self._background = FileThread("null-files")
        self.is_gone = False

    @property
    def busy_seconds(self) -> float:
        return self._compute.busy_seconds

    def fingerprint(self) -> EngineFingerprint:
        return EngineFingerprint(device="null", tinkex_version=__version__)

    def models(self) -> list[ModelInfo]:
        return list(self._models.values())

    def adapters(self) -> list[AdapterInfo]:
        with self._lock:
            return [_info(adapter_id, state) for adapter_id, state in self._adapters.items()]

    def create_adapter(self, adapter_id: str, model: str, spec: LoraSpec) -> AdapterInfo:
        check_lora(spec, self._model(model))
        with self._lock:
            if adapter_id in self._adapters:
                raise EngineUserError(
                    f"Adapter {adapter_id!r} exists already. Unload it first.",
                    code="adapter-exists",
                    field="adapter_id",
                    value=adapter_id,
                )
            weights = digest("create", model, repr(spec))
            state = self._adapters[adapter_id] = _State(model=model, spec=spec, weights=weights)
            return _info(adapter_id, state)

    def save_adapter(self, adapter_id: str, folder: Path, scope: StateScope = "weights") -> int:
        return self._written(adapter_id, folder, scope)()

    def start_saving(self, adapter_id: str, folder: Path, scope: StateScope) -> Future[int]:
        return self._background.start(self._written(adapter_id, folder, scope))

    def load_adapter(
        self, adapter_id: str, model: str, folder: Path, scope: StateScope = "weights"
    ) -> AdapterInfo:
        state = _trimmed(_read_state(folder), scope)
        if state.model != model:
            raise EngineUserError(
                f"{folder.name} was trained on {state.model!r}, not on {model!r}. "
                "Load it onto the model it was trained on.",
                code="wrong-base-model",
                field="model",
                value=model,
            )
        with self._lock:
            self._adapters[adapter_id] = state
            return _info(adapter_id, state)

    def unload_adapter(self, adapter_id: str) -> None:
        with self._lock:
            self._adapters.pop(adapter_id, None)

    def forward_backward(self, batch: list[TrainRequest]) -> list[TrainResult | RequestError]:
        with self._compute:
            time.sleep(self._delay_s)
            with self._lock:
                results = []
                for request in batch:
                    results.append(self._train_one(request))
                    crashpoints.passing("engine.batch.middle")
                return results

    def optim_step(self, batch: list[OptimRequest]) -> list[OptimResult | RequestError]:
        with self._compute:
            time.sleep(self._delay_s)
            with self._lock:
                return [self._optim_one(request) for request in batch]

    def snapshot(self, adapter_id: str, sampler_id: str) -> None:
        with self._lock:
            state = self._adapter(adapter_id)
            self._samplers[sampler_id] = (state.model, state.weights)

    def load_sampler(self, sampler_id: str, model: str, folder: Path) -> None:
        self._model(model)
        with self._lock:
            self._samplers[sampler_id] = (model, _read_state(folder).weights)

    def unload_sampler(self, sampler_id: str) -> None:
        with self._lock:
            self._samplers.pop(sampler_id, None)

    def submit_sample(self, request: SampleRequest) -> None:
        self.check_fits(request)
        with self._lock:
            self._queue[request.request_id] = request

    def submit_samples(self, batch: list[SampleRequest]) -> list[RequestError | None]:
        return [self._submit_one(request) for request in batch]

    def cancel_sample(self, request_id: str) -> None:
        with self._lock:
            self._queue.pop(request_id, None)

    def step_sampling(self, budget_s: float = 0.05) -> SamplingProgress:
        with self._compute:
            with self._lock:
                taken = list(self._queue.values())
                self._queue.clear()
            if taken:
                time.sleep(self._delay_s)
            with self._lock:
                finished = [self._sample_one(request) for request in taken]
                streamed = [
                    delta
                    for request, result in zip(taken, finished, strict=True)
                    if request.stream
                    for delta in whole_sequences(result)
                ]
                return SamplingProgress(
                    finished=finished, running=0, waiting=len(self._queue), streamed=streamed
                )

    def check_fits(self, request: TrainRequest | SampleRequest) -> None:
        if isinstance(request, TrainRequest):
            model = self._model(self._adapter(request.adapter_id).model)
            check_train(request, model, self._losses)
            return
        check_sample(request, self._model(request.model))
        if request.sampler_id is not None and request.sampler_id not in self._samplers:
            raise unknown_name("sampler", request.sampler_id)

    def reset(self) -> None:
        with self._lock:
            self._adapters.clear()
            self._samplers.clear()
            self._queue.clear()

    def trim(self) -> None:
        pass

    def close(self) -> None:
        self.is_gone = True
        self._background.close()
        self._adapters.clear()
        self._samplers.clear()

    def _model(self, name: str) -> ModelInfo:
        if name not in self._models:
            raise unknown_name("model", name)
        return self._models[name]

    def _adapter(self, adapter_id: str) -> _State:
        if adapter_id not in self._adapters:
            raise unknown_name("adapter", adapter_id)
        return self._adapters[adapter_id]

    def _written(self, adapter_id: str, folder: Path, scope: StateScope) -> Callable[[], int]:
        """Returns the writer of the adapter in the state it has at the call."""
        with self._lock:
            content = msgspec.json.encode(_trimmed(self._adapter(adapter_id), scope))

        def write() -> int:
            write_folder(folder, {"null_adapter.json": content})
            return folder_size_bytes(folder)

        return write

    def _train_one(self, request: TrainRequest) -> TrainResult | RequestError:
        try:
            self.check_fits(request)
        except EngineError as error:
            return error.to_request_error()
        state = self._adapter(request.adapter_id)
        logprobs = [
            hashed_logprobs(state.weights, np.asarray(datum.inputs["target_tokens"]))
            for datum in request.data
        ]
        if request.backward:
            parts = [array.tobytes().hex() for array in logprobs]
            state.gradients = digest(state.gradients, request.loss_fn, *parts)
            state.pending_backwards += 1
        loss = -float(sum(array.sum() for array in logprobs))
        num_tokens = sum(int(datum.tokens.size) for datum in request.data)
        return TrainResult(logprobs=logprobs, metrics={"loss:sum": loss}, num_tokens=num_tokens)

    def _optim_one(self, request: OptimRequest) -> OptimResult | RequestError:
        try:
            check_optim(request)
            state = self._adapter(request.adapter_id)
            optimizer = optimizer_name(request.params)
            check_same_optimizer(state.optimizer, optimizer)
        except EngineError as error:
            return error.to_request_error()
        if state.pending_backwards == 0:
            return OptimResult(metrics={"grad_norm": 0.0, "skipped": 1.0}, step=state.step)
        state.optimizer = optimizer
        numbers = repr(request.params)
        state.weights = digest(state.weights, state.gradients, numbers)
        norm = int(state.gradients[:8], 16) / 2**32
        state.gradients, state.pending_backwards, state.step = "", 0, state.step + 1
        return OptimResult(metrics={"grad_norm": norm}, step=state.step)

    def _submit_one(self, request: SampleRequest) -> RequestError | None:
        try:
            self.submit_sample(request)
        except EngineError as error:
            return error.to_request_error()
        return None

    def _sample_one(self, request: SampleRequest) -> SampleResult:
        info = self._models[request.model]
        weights = "base"
        if request.sampler_id is not None:
            if request.sampler_id not in self._samplers:
                error = unknown_name("sampler", request.sampler_id).to_request_error()
                return SampleResult(request_id=request.request_id, error=error)
            weights = self._samplers[request.sampler_id][1]
        count = min(max_new_tokens(request, info), request.params.max_tokens or _MAX_NEW_TOKENS)
        result = SampleResult(
            request_id=request.request_id,
            sequences=[
                hashed_sequence(weights, request, i, count, info)
                for i in range(request.num_samples)
            ],
        )
        hashed_prompt_scores(result, weights, request)
        return result


def _trimmed(state: _State, scope: StateScope) -> _State:
    if scope == "all":
        return msgspec.structs.replace(state)
    state = msgspec.structs.replace(state, gradients="", pending_backwards=0)
    if scope == "weights":
        state.step, state.optimizer = 0, None
    return state


def _read_state(folder: Path) -> _State:
    verify_folder(folder)
    path = folder / "null_adapter.json"
    if not path.is_file():
        raise EngineUserError(
            f"{folder.name} holds no saved adapter.", code="no-such-checkpoint", field="folder"
        )
    try:
        return msgspec.json.decode(path.read_bytes(), type=_State)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineUserError(
            f"{path.name} of {folder.name!r} cannot be read: {error}. Load another checkpoint.",
            code="damaged-checkpoint",
            field="folder",
        ) from error


def _info(adapter_id: str, state: _State) -> AdapterInfo:
    return AdapterInfo(
        adapter_id=adapter_id,
        model=state.model,
        spec=state.spec,
        step=state.step,
        pending_backwards=state.pending_backwards,
    )


def _model_info(
    name: str, vocab_size: int, context_length: int, losses: tuple[str, ...]
) -> ModelInfo:
    return ModelInfo(
        name=name,
        path="",
        arch="null",
        context_length=context_length,
        vocab_size=vocab_size,
        hidden_size=1,
        num_layers=1,
        num_parameters=0,
        eos_token_ids=(0,),
        max_rank=512,
        losses=losses,
    )
