"""What every engine has beside its computation: liveness, busy time and a fingerprint."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.engine.work import sample_request, sft_datum, train
from tinkex.engine.interface import Engine, LoraSpec
from tinkex.engine.null import NullEngine
from tinkex.engine.options import EngineOptions
from tinkex.engine.process.local import EngineProcess
from tinkex.engine.torch_engine import TorchEngine
from tinkex.version import __version__

Start = Callable[[], Engine]


@pytest.fixture(params=["null", "torch", "null process", "torch process"])
def start(request: pytest.FixtureRequest, tiny: Path) -> Iterator[Start]:
    """Starts engines of one kind."""
    started: list[Engine] = []
    options = EngineOptions(models={"tiny": str(tiny)}, memory_bytes=2**30, num_threads=1)
    null = EngineOptions(models={"tiny": ""}, device="null")
    kinds: dict[str, Start] = {
        "null": lambda: NullEngine(("tiny",)),
        "torch": lambda: TorchEngine(options),
        "null process": lambda: EngineProcess(null),
        "torch process": lambda: EngineProcess(options),
    }

    def start() -> Engine:
        started.append(kinds[request.param]())
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.mark.parametrize("kind", [NullEngine, TorchEngine, EngineProcess])
def test_every_member_of_the_protocol_is_there(kind: type) -> None:
    for name, member in inspect.getmembers(Engine):
        if name.startswith("_") or not callable(member):
            continue
        own = inspect.signature(getattr(kind, name)).parameters
        assert list(own) == list(inspect.signature(member).parameters), name


def test_an_engine_reports_liveness_and_busy_time(start: Start) -> None:
    engine = start()
    assert (engine.is_gone, engine.silent_seconds) == (False, 0.0)
    before = engine.busy_seconds
    engine.create_adapter("a", "tiny", LoraSpec(rank=4))
    train(engine, "a", [sft_datum(20, 1)])
    engine.submit_sample(sample_request("r", max_tokens=4))
    engine.step_sampling()
    assert engine.busy_seconds > before
    engine.close()
    assert engine.is_gone


def test_engines_of_one_kind_have_one_fingerprint(start: Start) -> None:
    found = start().fingerprint()
    assert found == start().fingerprint()
    assert found.tinkex_version == __version__
    if found.device == "null":
        assert (found.torch_version, found.num_threads, found.kernels) == ("", 0, "")
    else:
        assert (found.device, found.dtype, found.num_threads) == ("cpu", "float32", 1)
        assert found.torch_version == torch.__version__
        assert found.hardware


def test_the_fingerprint_differs_between_kernels_and_torch(
    tiny: Path, with_and_without_kernels: None
) -> None:
    options = EngineOptions(models={"tiny": str(tiny)}, memory_bytes=2**30)
    plain = EngineOptions(models={"tiny": str(tiny)}, memory_bytes=2**30, kernels=False)
    engine, without = TorchEngine(options), TorchEngine(plain)
    has_kernels = type(engine._bases["tiny"].sampler._runner).__name__ == "NativeRunner"
    assert engine.fingerprint().kernels == ("native" if has_kernels else "")
    assert without.fingerprint().kernels == ""
