"""Several tenants in one batch: the numbers of each are independent of the others, good or bad."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from tests.engine.oracle import assert_same, saved_gradients
from tests.engine.work import policy_datum, run_samples, sample_request, sft_datum, train, warm_up
from tinkex.engine.errors import EngineUserError
from tinkex.engine.interface import LoraSpec, OptimRequest, RequestError, TrainRequest, TrainResult
from tinkex.engine.model.lm_head import CHUNK_BYTES
from tinkex.engine.options import EngineOptions
from tinkex.engine.torch_engine import TorchEngine
from tinkex.engine.training.step import run_training
from tinkex.types.optimizers import TaggedAdamParams

SPECS = {
    "a": LoraSpec(rank=4, seed=1),
    "b": LoraSpec(rank=9, seed=2, train_mlp=False),
    "c": LoraSpec(rank=1, seed=3, train_attn=False),
}


def _requests() -> list[TrainRequest]:
    return [
        TrainRequest(adapter_id="a", data=[sft_datum(9), sft_datum(14)]),
        TrainRequest(adapter_id="b", data=[sft_datum(14, 1)]),
        TrainRequest(adapter_id="c", data=[policy_datum(10)], loss_fn="ppo"),
        TrainRequest(adapter_id="a", data=[sft_datum(5, 2)]),
        TrainRequest(adapter_id="b", data=[sft_datum(6)], backward=False),
    ]


def _engine(folder, **options) -> TorchEngine:
    engine = TorchEngine(EngineOptions(models={"tiny": str(folder)}, **options))
    for adapter_id, spec in SPECS.items():
        engine.create_adapter(adapter_id, "tiny", spec)
        warm_up(engine, adapter_id)
    return engine


def test_mixed_batch_equals_each_request_alone(tiny, tmp_path) -> None:
    together, alone = _engine(tiny), _engine(tiny)
    mixed = together.forward_backward(_requests())
    single = [alone.forward_backward([request])[0] for request in _requests()]
    for one, other in zip(mixed, single, strict=True):
        assert one.metrics["loss:sum"] == pytest.approx(other.metrics["loss:sum"], rel=1e-5)
        for ours, theirs in zip(one.logprobs, other.logprobs, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-5)
    for adapter_id in SPECS:
        together.save_adapter(adapter_id, tmp_path / "t" / adapter_id, "all")
        alone.save_adapter(adapter_id, tmp_path / "s" / adapter_id, "all")
        pair = [saved_gradients(tmp_path / side / adapter_id) for side in "ts"]
        assert_same(*pair, rtol=1e-5)


def test_deterministic_engine_is_exact_beside_any_other_requests(tiny, tmp_path) -> None:
    together, alone = _engine(tiny, deterministic=True), _engine(tiny, deterministic=True)
    mixed = together.forward_backward(_requests())
    single = [alone.forward_backward([request])[0] for request in _requests()]
    for one, other in zip(mixed, single, strict=True):
        assert one.metrics == other.metrics
    for adapter_id in SPECS:
        together.save_adapter(adapter_id, tmp_path / "t" / adapter_id, "all")
        alone.save_adapter(adapter_id, tmp_path / "s" / adapter_id, "all")
        files = [tmp_path / side / adapter_id / "gradients.safetensors" for side in "ts"]
        assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("sizes", [[2, 2], [1, 2, 1], [3]])
def test_an_adapters_own_requests_are_exact_however_they_come(sizes, tiny, tmp_path) -> None:
    """Chunks of one large batch reach the engine together or apart, as it happens."""
    lengths = [3, 17, 64, 5][: sum(sizes)]
    requests = [
        TrainRequest(adapter_id="a", data=[sft_datum(n, 1), sft_datum(n + 2, 2)]) for n in lengths
    ]
    saved, metrics = [], []
    for split in (sizes, [1] * len(requests)):
        engine = _engine(tiny, microbatch_tokens=32)
        left, results = list(requests), []
        for size in split:
            results += engine.forward_backward(left[:size])
            del left[:size]
        metrics.append([result.metrics for result in results])
        engine.save_adapter("a", tmp_path / str(len(saved)), "all")
        saved.append((tmp_path / str(len(saved)) / "gradients.safetensors").read_bytes())
    assert metrics[0] == metrics[1]
    assert saved[0] == saved[1]


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't allocate memory")])
def test_only_the_request_without_memory_fails(error, tiny, monkeypatch, caplog) -> None:
    engine, clean = _engine(tiny), _engine(tiny)
    tries = []

    def short_of_memory(backbone, requests, states, max_tokens, losses):
        tries.append([request.adapter_id for request in requests])
        if any(datum.tokens.size == 50 for request in requests for datum in request.data):
            raise error
        return run_training(backbone, requests, states, max_tokens, losses)

    monkeypatch.setattr("tinkex.engine.torch_engine.run_training", short_of_memory)
    good = [TrainRequest(adapter_id=each, data=[sft_datum(9)]) for each in "ab"]
    bad = TrainRequest(adapter_id="c", data=[sft_datum(50)])
    first, failed, last = engine.forward_backward([good[0], bad, good[1]])
    assert tries == [["a", "c", "b"], ["a"], ["c"], ["b"]]
    assert [r.message for r in caplog.records if r.name == "tinkex.engine.torch_engine"] == [
        "A training batch of 3 requests failed; each is tried once more, alone "
        f"({type(error).__name__}: {error})."
    ]
    assert isinstance(failed, RequestError)
    assert failed.kind == "server"
    expected = [clean.forward_backward([each])[0].metrics for each in good]
    assert [first.metrics, last.metrics] == expected
    assert [each.pending_backwards for each in engine.adapters()] == [1, 1, 0]


def _broken(**changes) -> TrainRequest:
    datum = sft_datum(6)
    datum.inputs |= changes.pop("inputs", {})
    if "tokens" in changes:
        datum.tokens = changes.pop("tokens")
    for name in changes.pop("without", ()):
        del datum.inputs[name]
    return TrainRequest(**{"adapter_id": "a", "data": [datum], **changes})


NAN = np.array([1, 2, np.nan, 0, 0, 0], np.float32)
BROKEN = {
    "unknown-loss": _broken(loss_fn="hinge"),
    "unknown-loss-input": _broken(inputs={"mask": np.ones(6, np.float32)}),
    "missing-loss-input": _broken(without=["weights"]),
    "wrong-length": _broken(inputs={"weights": np.ones(5, np.float32)}),
    "not-finite": _broken(inputs={"weights": NAN}),
    "token-out-of-vocabulary": _broken(tokens=np.array([1, 2, 3, 4, 5, 272])),
    "context-too-long": _broken(tokens=np.zeros(513, np.int64)),
    "empty-tokens": _broken(tokens=np.zeros(0, np.int64)),
    "empty-data": TrainRequest(adapter_id="a", data=[]),
    "unknown-adapter": _broken(adapter_id="none"),
    "unknown-loss-config": _broken(loss_config={"beta": 0.1}),
    "bad-tokens": _broken(tokens=np.ones(6, np.float32)),
}
MORE_BROKEN = [
    ("wrong-length", _broken(inputs={"target_tokens": np.zeros(7, np.int64)})),
    ("wrong-length", _broken(inputs={"target_tokens": np.zeros((6, 0), np.int64)})),
    ("token-out-of-vocabulary", _broken(inputs={"target_tokens": np.array([1, 2, 3, 4, 5, -1])})),
    ("bad-loss-input", _broken(inputs={"target_tokens": np.ones(6, np.float32)})),
    ("not-finite", _broken(inputs={"weights": np.full(6, np.inf, np.float32)})),
]


@pytest.mark.parametrize(("code", "request_"), [*BROKEN.items(), *MORE_BROKEN])
def test_bad_request_is_refused_and_the_others_of_its_batch_are_served(
    code, request_, tiny, tmp_path
) -> None:
    engine, clean = _engine(tiny), _engine(tiny)
    good = TrainRequest(adapter_id="a", data=[sft_datum(8)])
    first, bad, last = engine.forward_backward([good, request_, good])
    assert isinstance(bad, RequestError)
    assert (bad.code, bad.kind) == (code, "user")
    assert bad.message.rstrip().endswith((".", "?"))
    for answer in clean.forward_backward([good, good]):
        assert isinstance(first, TrainResult)
        assert isinstance(last, TrainResult)
        assert answer.metrics == first.metrics == last.metrics
    for name, each in (("with", engine), ("without", clean)):
        each.save_adapter("a", tmp_path / name, "all")
    assert_same(
        saved_gradients(tmp_path / "with"), saved_gradients(tmp_path / "without"), rtol=1e-6
    )


def test_overflowing_loss_is_refused_and_adds_nothing(tiny, tmp_path) -> None:
    engine, clean = _engine(tiny), _engine(tiny)
    wild = policy_datum(6)
    wild.inputs["logprobs"] = np.full(6, -3e38, np.float32)
    good = TrainRequest(adapter_id="a", data=[sft_datum(8)])
    bad = TrainRequest(adapter_id="a", data=[wild], loss_fn="importance_sampling")
    other = TrainRequest(adapter_id="b", data=[sft_datum(8)])
    answers = engine.forward_backward([good, bad, other])
    assert [type(answer) for answer in answers] == [TrainResult, RequestError, TrainResult]
    assert answers[1].code == "loss-not-finite"
    clean.forward_backward([good, other])
    for adapter_id in "ab":
        engine.save_adapter(adapter_id, tmp_path / "e" / adapter_id, "all")
        clean.save_adapter(adapter_id, tmp_path / "c" / adapter_id, "all")
        pair = [saved_gradients(tmp_path / side / adapter_id) for side in "ec"]
        assert_same(*pair, rtol=1e-6)


def test_failure_inside_a_batch_adds_nothing(engine, monkeypatch) -> None:
    engine.create_adapter("a", "tiny", LoraSpec(rank=2))
    base = engine._base("tiny")
    original = base.backbone.forward_with_backward
    calls = []

    def fail_second(*args: object) -> object:
        calls.append(args)
        if len(calls) % 2 == 0:  # in the first try, and in the second
            raise RuntimeError("no memory")
        return original(*args)

    base.microbatch_tokens = 10
    request = TrainRequest(adapter_id="a", data=[sft_datum(9), sft_datum(8)])
    with monkeypatch.context() as patch:
        patch.setattr(base.backbone, "forward_with_backward", fail_second)
        (answer,) = engine.forward_backward([request])
    assert answer.kind == "server"
    assert engine.adapters()[0].pending_backwards == 0
    assert train(engine, "a", request.data).num_tokens == 17


def test_bad_optimizer_numbers_do_not_stop_the_other_steps(engine) -> None:
    for adapter_id in "ab":
        engine.create_adapter(adapter_id, "tiny", LoraSpec(rank=2))
        train(engine, adapter_id, [sft_datum(5)])
    for field, value in (
        ("learning_rate", -1.0),
        ("learning_rate", float("nan")),
        ("beta1", 1.0),
        ("beta2", -0.1),
        ("eps", 0.0),
        ("weight_decay", float("inf")),
        ("grad_clip_norm", -1.0),
    ):
        params = TaggedAdamParams(**{field: value})
        (bad,) = engine.optim_step([OptimRequest(adapter_id="a", params=params)])
        assert (bad.code, bad.field) == ("bad-optimizer-value", field)
    bad, good = engine.optim_step([OptimRequest(adapter_id="none"), OptimRequest(adapter_id="b")])
    assert bad.code == "unknown-adapter"
    assert good.step == 1
    assert [info.step for info in engine.adapters()] == [0, 1]


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        ("empty-tokens", {"tokens": np.zeros(0, np.int64)}),
        ("token-out-of-vocabulary", {"tokens": np.array([1, 999])}),
        ("context-too-long", {"tokens": np.zeros(512, np.int64)}),
        ("bad-sampling-value", {"num_samples": 0}),
        ("bad-sampling-value", {"prompt_logprobs_last_n": 2}),
        ("bad-sampling-value", {"prompt_logprobs": True, "prompt_logprobs_last_n": 6}),
        ("bad-sampling-value", {"topk_prompt_logprobs": 273}),
        ("bad-sampling-value", {"stop": [""]}),
        ("token-out-of-vocabulary", {"logit_bias": {272: 1.0}}),
        ("wrong-length", {"target_prompt_logprobs": np.zeros((6, 1), np.int64)}),
        ("token-out-of-vocabulary", {"target_prompt_logprobs": np.full((5, 1), 272)}),
        ("unknown-model", {"model": "other"}),
        ("unknown-sampler", {"sampler_id": "none"}),
    ],
)
def test_bad_sampling_request_is_refused_before_it_is_queued(code, fields, engine) -> None:
    with pytest.raises(EngineUserError) as caught:
        engine.submit_sample(sample_request(**fields))
    assert caught.value.code == code
    assert run_samples(engine) == {}


@pytest.mark.parametrize(
    ("code", "spec"),
    [
        ("rank-out-of-range", LoraSpec(rank=0)),
        ("rank-out-of-range", LoraSpec(rank=257)),
        ("nothing-to-train", LoraSpec(train_attn=False, train_mlp=False, train_unembed=False)),
    ],
)
def test_impossible_adapters_are_refused(code, spec, engine) -> None:
    with pytest.raises(EngineUserError) as caught:
        engine.create_adapter("a", "tiny", spec)
    assert caught.value.code == code
    assert engine.adapters() == []


def test_too_large_for_memory_is_said_before_the_work(tiny) -> None:
    half = CHUNK_BYTES + 2 * 2**20  # for a chunk of logits, and little more
    engine = TorchEngine(EngineOptions(models={"tiny": str(tiny)}, memory_bytes=2 * half))
    engine.create_adapter("a", "tiny", LoraSpec(rank=2))
    small = TrainRequest(adapter_id="a", data=[sft_datum(20)])
    large = TrainRequest(adapter_id="a", data=[sft_datum(500)])
    engine.check_fits(small)
    with pytest.raises(EngineUserError, match="at most") as caught:
        engine.check_fits(large)
    assert caught.value.code == "too-large"
    kept, refused = engine.forward_backward([small, large])
    assert isinstance(kept, TrainResult)
    assert isinstance(refused, RequestError)


def test_adapters_beyond_their_memory_are_refused(tiny) -> None:
    engine = TorchEngine(EngineOptions(models={"tiny": str(tiny)}, memory_bytes=2**20))
    engine.create_adapter("a", "tiny", LoraSpec(rank=2))
    with pytest.raises(EngineUserError, match="does not fit") as caught:
        engine.create_adapter("b", "tiny", LoraSpec(rank=64))
    assert caught.value.code == "engine-full"
    taken = 0
    with contextlib.suppress(EngineUserError):
        for taken in range(100):
            engine.snapshot("a", f"s{taken}")
    assert 0 < taken < 99
    engine.unload_sampler("s0")
    engine.snapshot("a", "s")
    with pytest.raises(EngineUserError, match="Unload adapters"):
        engine.snapshot("a", "one more")


def test_too_large_for_the_cache_is_said_before_the_work(tiny) -> None:
    engine = TorchEngine(EngineOptions(models={"tiny": str(tiny)}, memory_bytes=2**19))
    engine.check_fits(sample_request(max_tokens=20))
    with pytest.raises(EngineUserError, match="Lower max_tokens"):
        engine.check_fits(sample_request(max_tokens=506))
