"""A worker that stops answering is ended; one that only computes for long is not."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from tests.engine.work import sft_datum, warm_up
from tinkex.engine.errors import EngineFailure
from tinkex.engine.interface import LoraSpec, TrainRequest, TrainResult
from tinkex.engine.null import NullEngine
from tinkex.engine.options import EngineOptions
from tinkex.engine.process.liveness import Silence
from tinkex.engine.process.local import EngineProcess

PING_S = 0.2
HANG_S = 2.0


@pytest.fixture
def null_process() -> Iterator[EngineProcess]:
    options = EngineOptions(models={"tiny": ""}, device="null")
    with EngineProcess(options, ping_s=PING_S, hang_s=HANG_S) as engine:
        yield engine


def test_silence_counts_from_the_oldest_ping_without_an_answer() -> None:
    silence = Silence(5.0, 100.0)
    assert silence.look(105.0, heard_at=100.1) == 0
    assert silence.look(110.0, heard_at=105.1) == 0
    assert silence.look(115.0, heard_at=105.1) == 5
    assert silence.look(120.0, heard_at=105.1) == 10
    assert silence.look(125.0, heard_at=121.0) == 0, "a late answer is an answer"


def test_time_in_which_this_process_did_not_run_is_not_silence() -> None:
    silence = Silence(5.0, 100.0)
    assert silence.look(105.0, heard_at=0.0) == 5
    assert silence.look(4000.0, heard_at=0.0) == 0, "suspended: a fresh interval"
    assert silence.look(4005.0, heard_at=0.0) == 5
    assert silence.look(4014.0, heard_at=0.0) == 14, "a late look is not a pause"


def test_a_stopped_worker_is_ended_and_its_calls_fail(null_process: EngineProcess) -> None:
    null_process.create_adapter("a", "tiny", LoraSpec())
    os.kill(null_process.pid, signal.SIGSTOP)
    with pytest.raises(EngineFailure, match="did not answer for") as caught:
        null_process.forward_backward([TrainRequest(adapter_id="a", data=[sft_datum(9)])])
    assert caught.value.code == "engine-hung"
    assert null_process._process.wait(10) == -signal.SIGKILL
    with pytest.raises(EngineFailure, match="did not answer for"):
        null_process.models()


def test_a_worker_stopped_in_the_midst_of_a_message_is_ended(null_process: EngineProcess) -> None:
    null_process.create_adapter("a", "tiny", LoraSpec())
    large = [TrainRequest(adapter_id="a", data=[sft_datum(100_000) for _ in range(20)])]
    os.kill(null_process.pid, signal.SIGSTOP)
    with pytest.raises(EngineFailure) as caught:  # its buffer is full, and the sender waits
        null_process.forward_backward(large)
    assert caught.value.code == "engine-hung"


def test_a_worker_that_is_stopped_while_idle_is_ended(null_process: EngineProcess) -> None:
    os.kill(null_process.pid, signal.SIGSTOP)
    deadline = time.monotonic() + 60
    silences = set()
    while not null_process.is_gone:
        silences.add(null_process.silent_seconds)
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert max(silences) >= PING_S, "it was told before the end"


def test_a_call_that_waits_for_long_is_no_hang() -> None:
    options = EngineOptions(models={"tiny": ""}, device=f"null:{2 * HANG_S}")
    with EngineProcess(options, ping_s=PING_S, hang_s=HANG_S) as engine:
        engine.optim_step([])
        assert engine.is_alive


def test_a_long_computation_is_no_hang(model_folder) -> None:
    options = EngineOptions(models={"tiny": str(model_folder("smollm"))}, num_threads=1)
    with EngineProcess(options, ping_s=PING_S, hang_s=HANG_S) as engine:
        engine.create_adapter("a", "tiny", LoraSpec(rank=4))
        took_s, copies = 0.0, 60
        while took_s < 1.5 * HANG_S:
            batch = [TrainRequest(adapter_id="a", data=[sft_datum(400)] * copies)]
            began = time.monotonic()
            assert isinstance(engine.forward_backward(batch)[0], TrainResult)
            took_s, copies = time.monotonic() - began, 2 * copies
        assert engine.is_alive


def test_pongs_do_not_mix_with_results() -> None:
    """Pings every millisecond from one thread beside large calls and results from two others."""
    here = NullEngine(("tiny",))
    options = EngineOptions(models={"tiny": ""}, device="null")
    with EngineProcess(options, ping_s=0.001, hang_s=60.0) as engine:
        for each in (here, engine):
            for name in "ab":
                each.create_adapter(name, "tiny", LoraSpec(seed=1))
                warm_up(each, name)
        failures: list[BaseException] = []

        def work(name: str) -> None:
            try:
                for seed in range(8):
                    data = [sft_datum(30_000, seed + n) for n in range(8)]
                    batch = [TrainRequest(adapter_id=name, data=data, backward=False)]
                    (result,), (expected,) = (
                        engine.forward_backward(batch),
                        here.forward_backward(batch),
                    )
                    assert isinstance(result, TrainResult)
                    assert isinstance(expected, TrainResult)
                    for one, other in zip(result.logprobs, expected.logprobs, strict=True):
                        np.testing.assert_array_equal(one, other)
                    engine.adapters()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert engine.is_alive
