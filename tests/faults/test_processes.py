"""Threads, sockets, forks and exits: a runtime leaves nothing behind and stops in time."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.support.data import CROSS_ENTROPY, PARAMS, PROMPT, make_data
from tests.support.fixtures import make_config
from tests.support.leaks import client_threads, no_new_threads, sockets_to
from tests.support.loopback import LoopbackServer
from tests.support.waiting import wait_until
from tinkex import Runtime, ServiceClient, await_many, types

ROOT = Path(__file__).parents[2]
MODEL = "tiny/model"


def _port(server: LoopbackServer) -> int:
    return int(server.url.rsplit(":", 1)[1])


def test_importing_and_constructing_starts_nothing(server: LoopbackServer) -> None:
    with no_new_threads():
        before = client_threads()
        ServiceClient(config=make_config(server), runtime=Runtime())
        assert client_threads() == before
    assert server.requests == []


def test_start_and_stop_can_be_repeated(server: LoopbackServer) -> None:
    runtime = Runtime()
    for _ in range(3):
        runtime.start()
        runtime.start()
        sampling = ServiceClient(
            config=make_config(server), runtime=runtime
        ).create_sampling_client(base_model=MODEL)
        assert sampling.sample(PROMPT, 1, PARAMS).outcome(20).ok
        runtime.stop()
        runtime.stop()
        assert not runtime.is_running


def test_no_thread_and_no_socket_is_left_after_stop(server: LoopbackServer) -> None:
    with no_new_threads():
        with Runtime() as runtime:
            service = ServiceClient(config=make_config(server), runtime=runtime)
            sampling = service.create_sampling_client(base_model=MODEL)
            training = service.create_lora_training_client(base_model=MODEL, rank=8)
            training.forward_backward(make_data([3]), CROSS_ENTROPY).result(20)
            await_many([sampling.sample(PROMPT, 1, PARAMS) for _ in range(30)], timeout=20)
            assert sockets_to(_port(server)) > 0
        wait_until(lambda: sockets_to(_port(server)) == 0)
    wait_until(lambda: server.open_connections == 0)
    assert runtime.num_tasks == 0


def test_no_socket_is_left_when_polls_were_outstanding(server: LoopbackServer) -> None:
    server.hold("asample")
    with no_new_threads(), Runtime() as runtime:
        service = ServiceClient(config=make_config(server), runtime=runtime)
        sampling = service.create_sampling_client(base_model=MODEL)
        handles = [sampling.sample(PROMPT, 1, PARAMS) for _ in range(20)]
        server.wait_for("retrieve_future", 20)
    wait_until(lambda: sockets_to(_port(server)) == 0)
    wait_until(lambda: server.open_connections == 0)
    assert all(handle.done() for handle in handles)


def test_runtimes_live_side_by_side(server: LoopbackServer) -> None:
    """Stopping one ends its own work alone; registries are not shared."""
    config = make_config(server)
    first, second = Runtime().start(), Runtime().start()
    try:
        clients = [
            ServiceClient(config=config, runtime=each).create_sampling_client(base_model=MODEL)
            for each in (first, second)
        ]
        key = ("limiter", config.tenant_key)
        assert first.registry.lookup(key) is not second.registry.lookup(key)
        first.stop()
        assert clients[1].sample(PROMPT, 1, PARAMS).outcome(20).ok
        assert second.is_running
    finally:
        first.stop()
        second.stop()


def _run_child(child: object) -> int:
    """Run a function in a forked child; its exit code, or -1 if it hangs."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if child() else 2  # type: ignore[operator]
        finally:
            os._exit(code)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return -1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_can_use_a_fresh_client(server: LoopbackServer) -> None:
    with Runtime() as runtime:
        config = make_config(server)
        parent = ServiceClient(config=config, runtime=runtime)
        sampling = parent.create_sampling_client(base_model=MODEL)
        sampling.sample(PROMPT, 1, PARAMS).result(20)
        connections = {request.connection for request in server.requests}

        def child() -> bool:
            fresh = ServiceClient(config=config, runtime=Runtime())
            made = fresh.create_sampling_client(base_model=MODEL)
            return made.sample(PROMPT, 1, PARAMS).outcome(10).ok

        before = len(server.requests)
        assert _run_child(child) == 0
        used_by_child = {request.connection for request in server.requests[before:]}
        assert not used_by_child & connections, "a child must not write on its parent's sockets"
        assert sampling.sample(PROMPT, 1, PARAMS).outcome(20).ok


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_can_use_its_parents_runtime_and_sampler(server: LoopbackServer) -> None:
    """The runtime starts anew in the child; a sampler goes on under numbers of its own."""
    with Runtime() as runtime:
        service = ServiceClient(config=make_config(server), runtime=runtime)
        sampling = service.create_sampling_client(base_model=MODEL)
        sampling.sample(PROMPT, 1, PARAMS).result(20)

        assert _run_child(lambda: sampling.sample(PROMPT, 1, PARAMS).outcome(10).ok) == 0

        assert sampling.sample(PROMPT, 1, PARAMS).outcome(20).ok
    (sampler,) = server.service.world.samplers.values()
    assert len(sampler.seq_ids) == len(set(sampler.seq_ids)) == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_service_client_opens_a_session_of_its_own_in_a_forked_child(
    server: LoopbackServer,
) -> None:
    with Runtime() as runtime:
        service = ServiceClient(config=make_config(server), runtime=runtime)
        service.create_sampling_client(base_model=MODEL)

        def child() -> bool:
            training = service.create_lora_training_client(base_model=MODEL, rank=8)
            return training.optim_step(types.AdamParams()).outcome(10).ok

        assert _run_child(child) == 0
        assert len(server.service.world.sessions) == 2
        assert service.create_sampling_client(base_model=MODEL).sampling_session_id
        assert len(server.service.world.sessions) == 2, "the parent keeps the one it had"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_may_not_number_its_parents_training(server: LoopbackServer) -> None:
    with Runtime() as runtime:
        service = ServiceClient(config=make_config(server), runtime=runtime)
        training = service.create_lora_training_client(base_model=MODEL, rank=8)
        training.optim_step(types.AdamParams()).result(20)

        def child() -> bool:
            error = training.optim_step(types.AdamParams()).outcome(20).error
            return isinstance(error, RuntimeError) and "fork" in str(error)

        assert _run_child(child) == 0
        assert training.optim_step(types.AdamParams()).outcome(20).ok
    assert server.applied() == [(1, "optim_step"), (2, "optim_step")]


def _program(server: LoopbackServer, body: str) -> str:
    start = f"""
        from tinkex import Config, ServiceClient, types
        config = Config(base_url={server.url!r}, api_key="tml-a", environ={{}}, files=())
        service = ServiceClient(config=config)
        sampling = service.create_sampling_client(base_model="m")
        training = service.create_lora_training_client(base_model="m", rank=8)
        prompt = types.ModelInput.from_ints([1, 2, 3])
    """
    return textwrap.dedent(start) + textwrap.dedent(body)


def test_a_process_with_work_outstanding_exits_at_once(server: LoopbackServer) -> None:
    """200 samples and a step that never finish: the interpreter does not wait for them."""
    server.hold("asample")
    server.hold("optim_step")
    program = _program(
        server,
        """
        handles = [sampling.sample(prompt, 1, types.SamplingParams()) for _ in range(200)]
        handles.append(training.optim_step(types.AdamParams()))
        import sys
        sys.stdin.readline()
        print("leaving", flush=True)
        """,
    )
    process = subprocess.Popen(
        [sys.executable, "-X", "dev", "-c", program],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    server.wait_for("asample", 200, timeout_s=30)
    server.wait_for("optim_step", 1, timeout_s=30)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "leaving\n"
    left_at = time.monotonic()
    _, errors = process.communicate(timeout=20)

    assert time.monotonic() - left_at < 4, "two seconds are promised; this machine may be busy"
    assert process.returncode == 0
    assert "Traceback" not in errors, errors
    assert "was never" not in errors, errors
    wait_until(lambda: server.open_connections == 0)


def test_a_process_that_waits_can_be_interrupted(server: LoopbackServer) -> None:
    """Ctrl-C during `.result()` ends the program."""
    server.hold("asample")
    program = _program(
        server, "sampling.sample(prompt, 1, types.SamplingParams(max_tokens=1)).result()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    server.wait_for("retrieve_future", 2, timeout_s=30)
    process.send_signal(2)
    _, errors = process.communicate(timeout=20)

    assert process.returncode != 0
    assert "KeyboardInterrupt" in errors


def test_a_program_that_does_not_close_still_ends(server: LoopbackServer) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", _program(server, "print('done')")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=20,
    )

    assert (done.returncode, done.stdout) == (0, "done\n")
    assert "Warning" not in done.stderr, done.stderr


def test_samples_in_flight_do_not_keep_training_waiting(server: LoopbackServer) -> None:
    """1500 samples that stay unanswered, in a process that may open 1024 files; then a step."""
    server.hold("asample")
    program = _program(
        server,
        """
        handles = [sampling.sample(prompt, 1, types.SamplingParams()) for _ in range(1500)]
        import sys
        sys.stdin.readline()
        print(training.optim_step(types.AdamParams()).outcome(20).ok, flush=True)
        """,
    )
    process = subprocess.Popen(
        ["sh", "-c", 'ulimit -n 1024 && exec "$0" -c "$1"', sys.executable, program],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    server.wait_for("asample", 1500, timeout_s=30)
    answer, _ = process.communicate("\n", timeout=40)

    assert answer == "True\n"
    assert process.returncode == 0
    assert server.applied() == [(1, "optim_step")]
