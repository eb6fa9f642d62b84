"""Tiny models and engines for the engine's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, cast, get_args

import pytest
import torch

from tests.engine.family_models import FAMILY_CONFIGS, make_family_model
from tinkex.engine import runner_choice
from tinkex.engine.convert.tiny_model import TinyShape, make_tiny_model
from tinkex.engine.native.build import NoKernels
from tinkex.engine.options import EngineOptions
from tinkex.engine.torch_engine import TorchEngine

SHAPES: tuple[str, ...] = (*get_args(TinyShape), *FAMILY_CONFIGS)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny model of a shape, made once per session."""
    root = tmp_path_factory.mktemp("models")

    def folder(shape: str) -> Path:
        path = root / shape
        if path.exists():
            return path
        if shape in FAMILY_CONFIGS:
            return make_family_model(path, shape)
        return make_tiny_model(path, cast("TinyShape", shape))

    return folder


@pytest.fixture(scope="session")
def tiny(model_folder: Callable[[str], Path]) -> Path:
    return model_folder("smollm")


@pytest.fixture(params=["kernels", "torch"])
def with_and_without_kernels(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines of a machine with a C compiler, then of one without."""

    def library() -> NoReturn:
        raise NoKernels("there is no C compiler", "Install one.")

    if request.param == "torch":
        monkeypatch.setattr(runner_choice, "library", library)


@pytest.fixture
def engine(tiny: Path) -> TorchEngine:
    return TorchEngine(EngineOptions(models={"tiny": str(tiny)}, memory_bytes=2**30))
