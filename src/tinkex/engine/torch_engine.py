"""The PyTorch engine: the interface over base models, adapters in training, and samplers.

Routes and guards; the numbers are made elsewhere. A request is checked before it can meet others,
a batch is added to its adapters only when all of it went well, and a failure inside a batch is
an answer, never a half-done step.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path

import msgspec
import torch

from tinkex import crashpoints
from tinkex.engine.base_model import BaseModel, load_base_model
from tinkex.engine.busy_lock import BusyLock
from tinkex.engine.checkpoint.peft_folder import load_state, load_weights, save_state
from tinkex.engine.errors import EngineError, EngineUserError, failure_of, unknown_name
from tinkex.engine.fingerprint import torch_fingerprint
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
    SequenceDelta,
    StateScope,
    TrainRequest,
    TrainResult,
)
from tinkex.engine.lora.adapter import AdapterWeights, LoraLayout
from tinkex.engine.loss_plugins import load_losses
from tinkex.engine.machine_memory import available_bytes
from tinkex.engine.memory import trim_malloc
from tinkex.engine.native.openmp_spin import SpinGovernor
from tinkex.engine.options import EngineOptions
from tinkex.engine.sampling.stops import Stops
from tinkex.engine.sampling.validation import check_sample
from tinkex.engine.training.optimizer import TrainingState, most_training_bytes
from tinkex.engine.training.step import run_training
from tinkex.engine.training.uploaded_loss import try_uploaded_loss
from tinkex.engine.training.validation import check_train
from tinkex.engine.validation import check_lora, check_optim
from tinkex.files.file_thread import FileThread

__all__ = ["TorchEngine"]

_log = logging.getLogger(__name__)

_spinning = SpinGovernor()  # one lock for all engines here: they share the process's threads


class TorchEngine(InProcessEngine):
    """An engine in this process.

    engine = TorchEngine(EngineOptions(models={"tiny": "path/to/folder"}))
    engine.create_adapter("a", "tiny", LoraSpec(rank=8))
    """

    def __init__(self, options: EngineOptions) -> None:
        if options.num_threads is not None and options.num_threads < 0:
            raise EngineUserError(
                f"num_threads={options.num_threads} must be above 0, or 0 for all.",
                code="bad-num-threads",
                field="num_threads",
                value=options.num_threads,
            )
        if options.num_threads or options.num_engines > 1:
            num_threads = options.num_threads or torch.get_num_threads()
            torch.set_num_threads(max(1, num_threads // options.num_engines))
        self._options = options
        self._losses = load_losses(options.losses)
        self._bases: dict[str, BaseModel] = {}
        by_folder: dict[Path, BaseModel] = {}
        folders = {name: Path(path).resolve() for name, path in options.models.items()}
        for name, folder in folders.items():
            if folder not in by_folder:
                num_to_load = len(set(folders.values()) - by_folder.keys())
                by_folder[folder] = load_base_model(name, folder, options, num_to_load)
            self._bases[name] = by_folder[folder]
        self._adapters: dict[str, tuple[str, TrainingState]] = {}
        self._samplers: dict[str, tuple[str, AdapterWeights]] = {}
        self._compute = BusyLock()
        self._background = FileThread("engine-files")
        self.is_gone = False

    @property
    def busy_seconds(self) -> float:
        return self._compute.busy_seconds

    def fingerprint(self) -> EngineFingerprint:
        has_kernels = any(base.has_kernels for base in self._unique_bases())
        return torch_fingerprint(self._options, has_kernels=has_kernels)

    def models(self) -> list[ModelInfo]:
        losses = tuple(self._losses)
        return [
            msgspec.structs.replace(base.info, name=name, losses=losses)
            for name, base in self._bases.items()
        ]

    def adapters(self) -> list[AdapterInfo]:
        return [_info(i, name, state) for i, (name, state) in list(self._adapters.items())]

    def create_adapter(self, adapter_id: str, model: str, spec: LoraSpec) -> AdapterInfo:
        base = self._base(model)
        check_lora(spec, base.info)
        with self._compute:
            if adapter_id in self._adapters:
                raise EngineUserError(
                    f"Adapter {adapter_id!r} exists already. Unload it first.",
                    code="adapter-exists",
                    field="adapter_id",
                    value=adapter_id,
                )
            layout = LoraLayout(base.backbone.groups, spec)
            base.memory.check_adapter(self._held_bytes(base), most_training_bytes(layout.numel))
            flat = layout.initial().to(base.backbone.head_VD.device)
            state = TrainingState(AdapterWeights(layout, flat))
            self._adapters[adapter_id] = (model, state)
            return _info(adapter_id, model, state)

    def save_adapter(self, adapter_id: str, folder: Path, scope: StateScope = "weights") -> int:
        with self._compute:
            model, state = self._adapter(adapter_id)
            return save_state(folder, state, scope, model, self._bases[model].info.path)

    def start_saving(self, adapter_id: str, folder: Path, scope: StateScope) -> Future[int]:
        with self._compute:
            # Weights alone are saved in every step of a loop: a copy, and a thread that hashes
            # while two cores compute, cost more than they save.
            has_room = 2 * self._adapter(adapter_id)[1].size_bytes <= available_bytes()
            if scope == "weights" or not has_room:
                done: Future[int] = Future()
                done.set_result(self.save_adapter(adapter_id, folder, scope))
                return done
            model, state = self._adapter(adapter_id)
            path, copy = self._bases[model].info.path, state.copy(scope)
        return self._background.start(lambda: save_state(folder, copy, scope, model, path))

    def load_adapter(
        self, adapter_id: str, model: str, folder: Path, scope: StateScope = "weights"
    ) -> AdapterInfo:
        backbone = self._base(model).backbone
        with self._compute:
            state = load_state(folder, backbone.groups, scope, backbone.head_VD.device)
            check_lora(state.weights.layout.spec, self._base(model).info)
            self._adapters[adapter_id] = (model, state)
            return _info(adapter_id, model, state)

    def unload_adapter(self, adapter_id: str) -> None:
        with self._compute:
            if self._adapters.pop(adapter_id, None) is not None:
                trim_malloc()

    def forward_backward(self, batch: list[TrainRequest]) -> list[TrainResult | RequestError]:
        with self._compute:
            answers: dict[int, TrainResult | RequestError] = {}
            groups: dict[object, list[int]] = {}
            num_passes: Counter[str] = Counter()
            for index, request in enumerate(batch):
                try:
                    self.check_fits(request)
                except EngineError as error:
                    answers[index] = error.to_request_error()
                    continue
                base = self._bases[self._adapters[request.adapter_id][0]]
                # An adapter's own requests never share passes: how they happen to arrive must
                # not change a bit, or a run would not end as one that was interrupted.
                num_passes[request.adapter_id] += 1
                alone = self._options.deterministic
                key = index if alone else (id(base), num_passes[request.adapter_id])
                groups.setdefault(key, []).append(index)
            for indices in groups.values():
                found = self._train([batch[i] for i in indices])
                _spinning.look()
                crashpoints.passing("engine.batch.middle")
                answers.update(zip(indices, found, strict=True))
            return [answers[index] for index in range(len(batch))]

    def optim_step(self, batch: list[OptimRequest]) -> list[OptimResult | RequestError]:
        with self._compute:
            return [self._optim_one(request) for request in batch]

    def snapshot(self, adapter_id: str, sampler_id: str) -> None:
        with self._compute:
            model, state = self._adapter(adapter_id)
            base = self._base(model)
            more_bytes = base.sampler.bytes_for(state.weights)
            base.memory.check_adapter(self._held_bytes(base), more_bytes)
            self._samplers[sampler_id] = (model, state.weights.copy())

    def load_sampler(self, sampler_id: str, model: str, folder: Path) -> None:
        base = self._base(model)
        weights = load_weights(folder, base.backbone.groups, base.backbone.head_VD.device)
        base.memory.check_adapter(self._held_bytes(base), base.sampler.bytes_for(weights))
        self._samplers[sampler_id] = (model, weights)

    def unload_sampler(self, sampler_id: str) -> None:
        if self._samplers.pop(sampler_id, None) is not None:
            trim_malloc()

    def submit_sample(self, request: SampleRequest) -> None:
        self.check_fits(request)
        weights = None if request.sampler_id is None else self._sampler(request)
        self._base(request.model).sampler.submit(request, weights)

    def submit_samples(self, batch: list[SampleRequest]) -> list[RequestError | None]:
        return [self._submit_one(request) for request in batch]

    def cancel_sample(self, request_id: str) -> None:
        for base in self._unique_bases():
            base.sampler.cancel(request_id)

    def step_sampling(self, budget_s: float = 0.05) -> SamplingProgress:
        end = time.monotonic() + budget_s
        finished: list[SampleResult] = []
        while True:
            with self._compute:
                for base in self._unique_bases():
                    finished += base.step_sampling()
                _spinning.look()
            running = sum(base.sampler.num_running for base in self._unique_bases())
            waiting = sum(base.sampler.num_waiting for base in self._unique_bases())
            is_due = any(base.sampler.streamed.has_first_token for base in self._unique_bases())
            if finished or is_due or time.monotonic() >= end or not (running or waiting):
                return SamplingProgress(
                    finished=finished, running=running, waiting=waiting, streamed=self._streamed()
                )

    def check_fits(self, request: TrainRequest | SampleRequest) -> None:
        if isinstance(request, TrainRequest):
            base = self._base(self._adapter(request.adapter_id)[0])
            check_train(request, base.info, self._losses)
            base.memory.check_train(request)
            if request.custom_loss:
                try_uploaded_loss(request)
            return
        base = self._base(request.model)
        check_sample(request, base.info)
        base.memory.check_sample(request, base.info)
        strings = Stops.of(request.params).strings
        if strings and not base.can_decode_text:
            raise EngineUserError(
                f"{request.model} has no tokenizer.json here, so stop strings cannot be matched. "
                "Use stop token ids.",
                code="no-tokenizer",
                field="stop",
                value=strings,
            )
        if request.sampler_id is not None:
            self._sampler(request)

    def reset(self) -> None:
        with self._compute:
            for base in self._unique_bases():
                base.sampler.drop_all()
            self._adapters.clear()
            self._samplers.clear()

    def trim(self) -> None:
        with self._compute:
            for base in self._unique_bases():
                base.sampler.trim()
            trim_malloc()

    def close(self) -> None:
        self.is_gone = True
        self._background.close()
        with self._compute:
            self._adapters.clear()
            self._samplers.clear()
            self._bases.clear()

    def _train(
        self, requests: list[TrainRequest], *, is_last_try: bool = False
    ) -> list[TrainResult | RequestError]:
        """Answers valid requests on one base model, computed as one batch.

        If that fails (no memory, mostly), each is tried once more, alone.
        """
        states = {r.adapter_id: self._adapters[r.adapter_id][1] for r in requests}
        base = self._bases[self._adapters[requests[0].adapter_id][0]]
        try:
            output = run_training(
                base.backbone, requests, states, base.microbatch_tokens, self._losses
            )
        except (RuntimeError, MemoryError) as error:
            if is_last_try:
                return [failure_of("The forward_backward failed", error).to_request_error()]
            _log.warning(
                "A training batch of %d requests failed; each is tried once more, alone (%s: %s).",
                len(requests),
                type(error).__name__,
                error,
            )
            return [self._train([each], is_last_try=True)[0] for each in requests]
        if refused := output.refusals(requests):
            return self._train_without(refused, requests)
        for adapter_id, gradient in output.gradients.items():
            count = sum(r.backward and r.adapter_id == adapter_id for r in requests)
            states[adapter_id].add_gradient(gradient, count)
        return [output.result(i, request) for i, request in enumerate(requests)]

    def _train_without(
        self, refused: Mapping[int, EngineUserError], requests: list[TrainRequest]
    ) -> list[TrainResult | RequestError]:
        """Refuses these requests and computes the rest again, unaffected by them."""
        good = [request for i, request in enumerate(requests) if i not in refused]
        answers = iter(self._train(good) if good else [])
        return [
            refused[i].to_request_error() if i in refused else next(answers)
            for i in range(len(requests))
        ]

    def _optim_one(self, request: OptimRequest) -> OptimResult | RequestError:
        try:
            check_optim(request)
            _, state = self._adapter(request.adapter_id)
            metrics = state.apply(request.params)
        except EngineError as error:
            return error.to_request_error()
        return OptimResult(metrics=metrics, step=state.step)

    def _submit_one(self, request: SampleRequest) -> RequestError | None:
        try:
            self.submit_sample(request)
        except EngineError as error:
            return error.to_request_error()
        return None

    def _base(self, model: str) -> BaseModel:
        if model not in self._bases:
            raise unknown_name("model", model)
        return self._bases[model]

    def _adapter(self, adapter_id: str) -> tuple[str, TrainingState]:
        if adapter_id not in self._adapters:
            raise unknown_name("adapter", adapter_id)
        return self._adapters[adapter_id]

    def _sampler(self, request: SampleRequest) -> AdapterWeights:
        model, weights = self._samplers.get(request.sampler_id or "", ("", None))
        if weights is None:
            raise unknown_name("sampler", request.sampler_id or "")
        if self._bases[model] is not self._base(request.model):
            raise EngineUserError(
                f"Sampler {request.sampler_id!r} is of {model!r}, not of {request.model!r}.",
                code="wrong-base-model",
                field="model",
                value=request.model,
            )
        return weights

    def _streamed(self) -> list[SequenceDelta]:
        return [each for base in self._unique_bases() for each in base.sampler.streamed.take()]

    def _held_bytes(self, base: BaseModel) -> int:
        """Bytes that the base model's adapters and samplers take now."""
        adapters = [s.size_bytes for m, s in self._adapters.values() if self._bases[m] is base]
        samplers = [w for m, w in self._samplers.values() if self._bases[m] is base]
        return sum(adapters) + sum(map(base.sampler.bytes_for, samplers))

    def _unique_bases(self) -> list[BaseModel]:
        return list({id(base): base for base in self._bases.values()}.values())


def _info(adapter_id: str, model: str, state: TrainingState) -> AdapterInfo:
    return AdapterInfo(
        adapter_id=adapter_id,
        model=model,
        spec=state.weights.layout.spec,
        step=state.step,
        pending_backwards=state.pending_backwards,
        size_bytes=state.size_bytes,
    )
