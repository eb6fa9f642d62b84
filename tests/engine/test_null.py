"""The engine without numerics keeps the promises that need none, and loads no torch."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from tests.engine.work import optim, run_samples, sample_request, sft_datum, train
from tinkex.engine.errors import EngineUserError
from tinkex.engine.interface import LoraSpec, TrainRequest
from tinkex.engine.null import NullEngine


def _run(engine: NullEngine, adapter_id: str) -> list[float]:
    numbers = []
    for seed in range(3):
        numbers.append(train(engine, adapter_id, [sft_datum(6, seed)]).metrics["loss:sum"])
        numbers.append(optim(engine, adapter_id)["grad_norm"])
    return numbers


@pytest.fixture
def null() -> NullEngine:
    return NullEngine(("tiny",))


def test_same_operations_give_the_same_numbers(null) -> None:
    null.create_adapter("a", "tiny", LoraSpec(seed=1))
    null.create_adapter("b", "tiny", LoraSpec(seed=1))
    null.create_adapter("c", "tiny", LoraSpec(seed=2))
    a, b, c = (_run(null, adapter_id) for adapter_id in "abc")
    assert a == b != c
    assert len(set(a)) == len(a)


def test_order_of_operations_matters(null) -> None:
    null.create_adapter("a", "tiny", LoraSpec())
    null.create_adapter("b", "tiny", LoraSpec())
    for adapter_id, order in (("a", (1, 2)), ("b", (2, 1))):
        for seed in order:
            train(null, adapter_id, [sft_datum(6, seed)])
    assert optim(null, "a")["grad_norm"] != optim(null, "b")["grad_norm"]


def test_state_survives_save_and_load(null, tmp_path) -> None:
    null.create_adapter("a", "tiny", LoraSpec())
    train(null, "a", [sft_datum(6)])
    null.save_adapter("a", tmp_path / "a", "all")
    other = NullEngine(("tiny",))
    assert other.load_adapter("b", "tiny", tmp_path / "a", "all").pending_backwards == 1
    assert _run(other, "b") == _run(null, "a")


def test_snapshots_do_not_change(null) -> None:
    null.create_adapter("a", "tiny", LoraSpec())
    null.snapshot("a", "s")
    request = sample_request(sampler_id="s", prompt_logprobs=True, seed=1)
    before = run_samples(null, request)["r"]
    _run(null, "a")
    after = run_samples(null, request)["r"]
    np.testing.assert_array_equal(before.prompt_logprobs, after.prompt_logprobs)
    np.testing.assert_array_equal(before.sequences[0].tokens, after.sequences[0].tokens)


def test_bad_requests_are_refused_in_the_real_words(null) -> None:
    null.create_adapter("a", "tiny", LoraSpec())
    good = TrainRequest(adapter_id="a", data=[sft_datum(5)])
    bad = TrainRequest(adapter_id="a", data=[sft_datum(5)], loss_fn="hinge")
    answers = null.forward_backward([good, bad, good])
    assert answers[1].code == "unknown-loss"
    assert answers[0].metrics == answers[2].metrics
    with pytest.raises(EngineUserError, match="empty"):
        null.submit_sample(sample_request(tokens=np.zeros(0, np.int64)))
    answers = null.submit_samples(
        [sample_request("one"), sample_request(sampler_id="?"), sample_request("two")]
    )
    assert [getattr(answer, "code", None) for answer in answers] == [None, "unknown-sampler", None]
    assert run_samples(null).keys() == {"one", "two"}


def test_interface_and_null_engine_load_no_torch() -> None:
    code = (
        "import sys, tinkex.engine, tinkex.engine.interface, tinkex.engine.null, "
        "tinkex.engine.process.local, tinkex.engine.options; "
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_engine_imports_nothing_of_server_store_or_client() -> None:
    import pathlib

    import tinkex.engine

    folder = pathlib.Path(tinkex.engine.__file__).parent
    for path in folder.glob("*.py"):
        for layer in ("server", "store", "scheduler", "client", "cli"):
            assert f"tinkex.{layer}" not in path.read_text(), (path.name, layer)
