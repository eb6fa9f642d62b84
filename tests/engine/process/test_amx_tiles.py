"""Machines that announce AMX tiles without describing them still compute in bfloat16."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.engine.work import sft_datum, train
from tinkex.engine.interface import LoraSpec
from tinkex.engine.options import EngineOptions
from tinkex.engine.process.amx_tiles import WITHOUT_TILES, Registers, has_broken_tiles, is_broken
from tinkex.engine.process.local import EngineProcess

ANNOUNCED = Registers(2, 0, 0, 1 << 24)
NONE = Registers(0, 0, 0, 0)


def test_tiles_are_broken_if_announced_without_a_palette() -> None:
    assert is_broken(ANNOUNCED, NONE)
    assert not is_broken(ANNOUNCED, Registers(1, 0, 0, 0))
    assert not is_broken(NONE, NONE)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/cpuinfo")
def test_the_processor_is_read_as_the_kernel_sees_it() -> None:
    flags = Path("/proc/cpuinfo").read_text()
    if "amx_tile" not in flags:
        assert not has_broken_tiles()


def test_an_engine_process_trains_in_bfloat16(model_folder, monkeypatch) -> None:
    for name in WITHOUT_TILES:  # which the tests' own process has
        monkeypatch.delenv(name, raising=False)
    options = EngineOptions(models={"tiny": str(model_folder("smollm"))}, dtype="bfloat16")
    with EngineProcess(options) as engine:
        engine.create_adapter("a", "tiny", LoraSpec(rank=4, seed=1))
        result = train(engine, "a", [sft_datum(48), sft_datum(64, seed=1)])
    assert result.metrics["loss:sum"] > 0
