"""The engine in a process of its own: same numbers, quick answers while it works, clear death."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.engine.work import run_samples, sample_request, sft_datum, train, warm_up
from tinkex.engine.errors import EngineFailure, EngineUserError
from tinkex.engine.interface import (
    Engine,
    LoraSpec,
    RequestError,
    SampleRequest,
    TrainRequest,
    TrainResult,
)
from tinkex.engine.options import EngineOptions
from tinkex.engine.process import spawn
from tinkex.engine.process.codec import argument_types, decode, encode, result_type
from tinkex.engine.process.local import EngineProcess
from tinkex.engine.torch_engine import TorchEngine
from tinkex.files.atomic_folder import folder_size_bytes, payload_files


@pytest.fixture(scope="module")
def options(model_folder) -> EngineOptions:
    return EngineOptions(models={"tiny": str(model_folder("smollm"))}, num_threads=1)


@pytest.fixture(scope="module")
def remote(options) -> Iterator[EngineProcess]:
    with EngineProcess(options) as engine:
        yield engine


@pytest.fixture
def null_process() -> Iterator[EngineProcess]:
    with EngineProcess(EngineOptions(models={"tiny": ""}, device="null")) as engine:
        yield engine


def test_process_gives_the_numbers_of_the_engine_here(remote, options, tmp_path) -> None:
    local = TorchEngine(options)
    assert remote.models() == local.models()
    answers = []
    for engine in (remote, local):
        engine.create_adapter("a", "tiny", LoraSpec(rank=4, seed=1))
        warm_up(engine, "a")
        result = train(engine, "a", [sft_datum(9)])
        engine.snapshot("a", "s")
        request = sample_request(sampler_id="s", seed=1, prompt_logprobs=True)
        answers.append((result, run_samples(engine, request)["r"], engine.adapters()))
    (trained, sampled, infos), (trained_here, sampled_here, infos_here) = answers
    np.testing.assert_array_equal(trained.logprobs[0], trained_here.logprobs[0])
    assert trained.metrics == trained_here.metrics
    np.testing.assert_array_equal(sampled.sequences[0].tokens, sampled_here.sequences[0].tokens)
    np.testing.assert_array_equal(sampled.prompt_logprobs, sampled_here.prompt_logprobs)
    assert infos == infos_here
    size = remote.save_adapter("a", tmp_path / "a", "all")
    assert size == sum(file.stat().st_size for file in payload_files(tmp_path / "a"))
    assert remote.load_adapter("b", "tiny", tmp_path / "a", "all").pending_backwards == 1
    remote.unload_adapter("a")
    remote.unload_adapter("b")
    remote.unload_sampler("s")
    assert remote.adapters() == []


def test_a_process_saves_beside_its_work(remote, tmp_path) -> None:
    remote.create_adapter("saved", "tiny", LoraSpec(rank=4))
    warm_up(remote, "saved")
    remote.save_adapter("saved", tmp_path / "now", "all")
    saved = remote.start_saving("saved", tmp_path / "beside", "all")
    failed = remote.start_saving("unknown", tmp_path / "unknown", "all")
    train(remote, "saved", [sft_datum(9)])
    assert saved.result(20) == folder_size_bytes(tmp_path / "beside")
    for file in payload_files(tmp_path / "now"):
        assert (tmp_path / "beside" / file.name).read_bytes() == file.read_bytes()
    with pytest.raises(EngineUserError):
        failed.result(20)
    remote.unload_adapter("saved")


def test_a_save_fails_with_the_process_that_was_at_it(null_process, tmp_path) -> None:
    null_process.create_adapter("a", "tiny", LoraSpec(rank=4))
    os.kill(null_process.pid, signal.SIGSTOP)
    saved = null_process.start_saving("a", tmp_path / "a", "all")
    os.kill(null_process.pid, signal.SIGKILL)
    with pytest.raises(EngineFailure):
        saved.result(20)
    assert not (tmp_path / "a").exists()


def test_errors_keep_their_kind_code_and_field(remote) -> None:
    with pytest.raises(EngineUserError) as caught:
        remote.create_adapter("x", "tiny", LoraSpec(rank=10_000))
    assert (caught.value.code, caught.value.field) == ("rank-out-of-range", "rank")
    with pytest.raises(EngineUserError) as caught:
        remote.check_fits(TrainRequest(adapter_id="unknown", data=[]))
    assert caught.value.code == "unknown-adapter"


def test_samples_handed_in_together_are_refused_one_by_one(remote) -> None:
    answers = remote.submit_samples(
        [
            sample_request("good"),
            sample_request("empty", tokens=np.zeros(0, np.int64)),
            sample_request("huge", seed=2**70),
            sample_request("good too", seed=3),
        ]
    )
    codes = [None if answer is None else answer.code for answer in answers]
    assert codes == [None, "empty-tokens", "number-too-large", None]
    assert run_samples(remote).keys() == {"good", "good too"}


def test_light_calls_are_answered_while_a_long_one_runs(remote) -> None:
    remote.create_adapter("busy", "tiny", LoraSpec(rank=4))
    batch = [TrainRequest(adapter_id="busy", data=[sft_datum(400, i) for i in range(60)])]
    done = threading.Event()

    def work() -> None:
        assert isinstance(remote.forward_backward(batch)[0], TrainResult)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    answered = 0
    remote.submit_sample(sample_request("meanwhile"))
    while not done.is_set():
        remote.adapters()
        answered += not done.is_set()
        time.sleep(0.001)
    thread.join()
    assert answered >= 3
    assert run_samples(remote).keys() == {"meanwhile"}
    remote.unload_adapter("busy")


def test_sampling_and_training_interleave_from_two_threads(remote) -> None:
    remote.create_adapter("t", "tiny", LoraSpec(rank=4))
    failures: list[BaseException] = []

    def loop() -> None:
        try:
            for seed in range(5):
                train(remote, "t", [sft_datum(20, seed)])
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=loop)
    thread.start()
    results = run_samples(remote, *(sample_request(f"r{i}", max_tokens=20) for i in range(6)))
    thread.join()
    assert not failures
    assert len(results) == 6
    remote.unload_adapter("t")


def test_the_worker_reports_how_long_it_worked() -> None:
    with EngineProcess(EngineOptions(models={"tiny": ""}, device="null:0.05")) as engine:
        assert engine.busy_seconds == 0
        for _ in range(3):
            engine.optim_step([])
        assert engine.busy_seconds >= 3 * 0.05
        busy_seconds = engine.busy_seconds
        time.sleep(0.1)
        assert engine.busy_seconds == busy_seconds, "rest is no work"
        engine.models()
        assert engine.busy_seconds == busy_seconds, "what is answered beside the work is none"


def test_work_that_takes_long_counts_before_it_is_done() -> None:
    with EngineProcess(EngineOptions(models={"tiny": ""}, device="null:2")) as engine:
        working = threading.Thread(target=engine.optim_step, args=([],))
        working.start()
        while engine.busy_seconds == 0:
            assert working.is_alive(), "the call ended before it counted"
            time.sleep(0.01)
        before = engine.busy_seconds
        time.sleep(0.1)
        assert engine.busy_seconds > before
        working.join()


def test_death_fails_open_and_later_calls(null_process) -> None:
    null_process.create_adapter("a", "tiny", LoraSpec())
    outcome: list[BaseException] = []

    def wait_for_ever() -> None:
        try:
            while True:
                null_process.step_sampling(0.0)
        except EngineFailure as error:
            outcome.append(error)

    thread = threading.Thread(target=wait_for_ever)
    thread.start()
    os.kill(null_process.pid, signal.SIGKILL)
    thread.join(timeout=10)
    assert [error.code for error in outcome] == ["engine-died"]
    with pytest.raises(EngineFailure, match=r"exit code -9"):
        null_process.adapters()
    assert not null_process.is_alive


def test_worker_ends_with_its_parent_side(null_process) -> None:
    process = null_process._process
    null_process.close()
    assert process.poll() == 0
    with pytest.raises(EngineFailure):
        null_process.models()


def test_bad_model_folder_is_reported_at_the_start(tmp_path) -> None:
    with pytest.raises(EngineUserError, match=r"no config\.json"):
        EngineProcess(EngineOptions(models={"tiny": str(tmp_path)}))


def _methods() -> list[str]:
    """What is sent to the worker; the properties are known on this side."""
    members = {name: each for name, each in vars(Engine).items() if not name.startswith("_")}
    return [name for name, each in members.items() if callable(each) and name != "close"]


@pytest.mark.parametrize("method", _methods())
def test_every_method_of_the_interface_can_cross(method) -> None:
    assert argument_types(method) is not None
    assert callable(getattr(EngineProcess, method))
    assert result_type(method) is not None


def test_requests_survive_the_crossing_unchanged() -> None:
    request = sample_request(
        stop=["a", "ß"],
        target_prompt_logprobs=np.arange(10).reshape(5, 2),
        seed=2**63,
        min_p=0.25,
        logit_bias={7: -3.5, 0: 100.0},
    )
    (back,) = decode(encode((request,)), argument_types("check_fits"))
    assert isinstance(back, SampleRequest)
    np.testing.assert_array_equal(back.target_prompt_logprobs, request.target_prompt_logprobs)
    assert back.tokens.dtype == request.tokens.dtype
    assert back.params == request.params
    refused = RequestError(message="m", code="c", field="f")
    assert decode(encode([refused]), result_type("forward_backward")) == [refused]
    assert decode(encode((Path("/x/y"),)), tuple[Path]) == (Path("/x/y"),)


def test_objects_do_not_cross() -> None:
    with pytest.raises(NotImplementedError, match="does not cross"):
        encode(object())
    with pytest.raises(ValueError, match="do not cross"):
        decode(encode([["|O", [1], b"12345678"]]), list[np.ndarray])


def test_an_engine_takes_the_worker_begun_for_it(options) -> None:
    begun = spawn.begin(with_torch=True)
    with EngineProcess(options, begun=begun) as engine:
        assert engine.pid == begun.process.pid
        assert [model.name for model in engine.models()] == ["tiny"]
    assert begun.process.poll() == 0
    begun.close()


def test_a_worker_that_is_closed_unused_ends_at_once() -> None:
    begun = spawn.begin(with_torch=True)
    begun.close()
    assert begun.process.poll() is not None


def test_a_worker_ends_with_the_process_that_started_it() -> None:
    begun = spawn.begin()
    begun.connection.close()
    assert begun.process.wait(20) == 0
