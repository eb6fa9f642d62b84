"""The engines that a config describes, and where their models come from."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from pathlib import Path

import msgspec

from tinkex import crashpoints
from tinkex.engine.interface import Engine
from tinkex.engine.machine_memory import available_bytes
from tinkex.engine.options import EngineOptions
from tinkex.engine.process.spawn import BegunWorker
from tinkex.errors import ConfigError
from tinkex.server.config import ServedModel, ServerConfig

_HINT = "Give a folder with config.json and safetensors, or run 'tinkex models pull smollm2-135m'."


_MAX_WORKERS = 64


def engine_factories(
    config: ServerConfig, begun: BegunWorker | None = None
) -> list[Callable[[], Engine]]:
    """For each worker a function that starts its engine in a process of its own; the first
    engine starts in a process begun before.

    Raises:
        ConfigError: there is no model to serve, or one cannot be found.
    """
    from tinkex.engine.process.local import EngineProcess

    if not config.models:
        raise ConfigError("There is no model to serve.", hint=_HINT, code="no-model")
    _check_workers(config)
    _check_pings(config)
    if config.workers == 0:
        return []
    options = _options(config)
    numbers = itertools.count(1)
    workers = [] if begun is None else [begun]

    def start(worker: BegunWorker | None) -> Engine:
        crash_at = crashpoints.for_engine(next(numbers))
        return EngineProcess(
            msgspec.structs.replace(options, crash_at=crash_at),
            begun=worker,
            ping_s=config.engine_ping_s,
            hang_s=config.engine_hang_s,
        )

    def start_first() -> Engine:
        return start(workers.pop() if workers else None)

    return [start_first, *[lambda: start(None)] * (config.workers - 1)]


def _options(config: ServerConfig) -> EngineOptions:
    is_null = config.device.partition(":")[0] == "null"
    folders = {
        model.name: "" if is_null else str(find_model(model, config.data_dir))
        for model in config.models
    }
    return EngineOptions(
        models=folders,
        device=config.device,
        dtype=config.dtype,
        num_threads=config.num_threads,
        num_engines=config.workers,
        machine_bytes=available_bytes() if config.workers > 1 else None,
        deterministic=config.is_deterministic,
        kernels=config.has_kernels,
        max_rank=config.limits.max_rank,
        losses=config.losses,
    )


def _check_workers(config: ServerConfig) -> None:
    least = 1 if config.listen_workers is None else 0
    if not least <= config.workers <= _MAX_WORKERS:
        raise ConfigError(
            f"A server cannot have {config.workers} workers.",
            hint="Choose --workers between 1 and 64, at most one for each core.",
            code="bad-workers",
        )


def _check_pings(config: ServerConfig) -> None:
    if not 0 < 2 * config.engine_ping_s <= config.engine_hang_s:
        raise ConfigError(
            f"engine_hang_s={config.engine_hang_s:g} must be at least twice "
            f"engine_ping_s={config.engine_ping_s:g}, which must be above 0.",
            hint="Choose an --engine-ping-s above 0 and an --engine-hang-s of at least twice that.",
            code="bad-engine-pings",
        )


def kernels_trouble() -> tuple[str, str] | None:
    """Why a server here would sample without compiled kernels, and what to do; None if it would
    not. Builds them if they are not there yet."""
    from tinkex.engine.native.build import NoKernels, library, team_function

    importlib.import_module("torch")  # whose threads they run on
    try:
        team_function()
        library()
    except NoKernels as error:
        return str(error), error.hint
    return None


def model_trouble(folder: Path) -> str | None:
    """Why a server would not run the folder's model on its own model code, or sample from it
    without compiled kernels; None if it would do both. Looks at config.json alone."""
    from tinkex.engine.errors import EngineUserError
    from tinkex.engine.model.config import NotLean, parse_config, read_json
    from tinkex.engine.native.support import why_not_native

    try:
        raw = read_json(folder / "config.json")
        if not raw:
            return f"{folder} holds no config.json, so there is no model in it"
        spec = parse_config(raw)
    except (EngineUserError, KeyError, TypeError, ValueError, AttributeError, OverflowError) as bad:
        return f"its config.json cannot be read: {type(bad).__name__} {bad}"
    if isinstance(spec, NotLean):
        return f"it would run through transformers, more slowly: {spec.reason}"
    reason = why_not_native(spec)
    return None if reason is None else f"it would be sampled without compiled kernels: {reason}"


def find_model(model: ServedModel, data_dir: Path) -> Path:
    """The folder of a model: a local one, one that was pulled, or one of the hub's.

    Raises:
        ConfigError: it is nowhere, or cannot be read.
    """
    local = Path(model.source).expanduser()
    try:
        if local.is_dir():
            return local.resolve()
        is_file = local.is_file()
    except OSError as error:
        reason = f"The model folder {model.source!r} cannot be read: {error.strerror}."
        raise ConfigError(reason, hint=_HINT, code="no-such-model") from error
    if is_file:
        reason = f"The model {model.source!r} is a file, not a folder."
        raise ConfigError(reason, hint=_HINT, code="no-such-model")
    pulled = models_dir(data_dir) / model.source.replace("/", "--")
    if pulled.is_dir():
        return pulled.resolve()
    return _from_hub(model.source)


def models_dir(data_dir: Path) -> Path:
    """Where pulled models lie."""
    return data_dir / "models"


def _from_hub(source: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ConfigError(f"There is no model {source!r}.", hint=_HINT) from error
    patterns = ["*.json", "*.safetensors", "tokenizer*", "*.jinja", "*.txt"]
    for offline in (True, False):
        try:
            folder = snapshot_download(  # nosec B615 # the operator's choice; no code of it is run
                source, allow_patterns=patterns, local_files_only=offline
            )
            return Path(folder)
        except Exception as error:
            cause = error
    raise ConfigError(
        f"The model {source!r} is neither a local folder nor on a hub this machine can reach.",
        hint=_HINT,
        code="no-such-model",
    ) from cause
