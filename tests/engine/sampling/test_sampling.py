"""Sampling: numbers of the oracle, seeds that hold, stops that stop, and batches that mix."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.engine.conftest import SHAPES
from tests.engine.oracle import Oracle
from tests.engine.work import run_samples, sample_request, tokens, train, warm_up
from tinkex.engine.errors import EngineUserError
from tinkex.engine.interface import LoraSpec, SamplingProgress, TrainDatum
from tinkex.engine.options import EngineOptions
from tinkex.engine.torch_engine import TorchEngine

pytestmark = pytest.mark.usefixtures("with_and_without_kernels")


def _logprobs(oracle: Oracle, prompt, answer, temperature: float = 1.0) -> np.ndarray:
    """The oracle's logprobs of the answer's tokens after the prompt."""
    full = np.concatenate([prompt, answer])
    with torch.no_grad():
        scores = (oracle.all_logprobs(full) / temperature).log_softmax(-1)
    rows = np.arange(len(prompt) - 1, len(full) - 1)
    return scores[rows, full[rows + 1]].numpy()


@pytest.mark.parametrize("shape", SHAPES)
def test_greedy_answers_are_the_oracles_likeliest_tokens(shape, model_folder) -> None:
    folder = model_folder(shape)
    engine = TorchEngine(EngineOptions(models={"tiny": str(folder)}))
    request = sample_request(max_tokens=80, temperature=0.0, stop=[])
    (sequence,) = run_samples(engine, request)["r"].sequences
    full = np.concatenate([request.tokens, sequence.tokens])
    with torch.no_grad():
        scores = Oracle(folder).all_logprobs(full)[len(request.tokens) - 1 : -1]
    chosen = scores[np.arange(80), sequence.tokens]
    assert float((scores.max(-1).values - chosen).max()) < 1e-4
    np.testing.assert_allclose(sequence.logprobs, chosen, atol=1e-4)
    assert sequence.stop_reason == "length"


def test_sampled_logprobs_are_the_trainers_and_peft_s(engine, tiny, tmp_path) -> None:
    engine.create_adapter("a", "tiny", LoraSpec(rank=4))
    warm_up(engine, "a")
    engine.snapshot("a", "s")
    request = sample_request(sampler_id="s", max_tokens=40, seed=1, stop=[])
    (sequence,) = run_samples(engine, request)["r"].sequences
    full = np.concatenate([request.tokens, sequence.tokens])
    inputs = {"target_tokens": full[1:], "weights": np.ones(len(full) - 1, np.float32)}
    trained = train(engine, "a", [TrainDatum(tokens=full[:-1], inputs=inputs)]).logprobs[0]
    np.testing.assert_allclose(sequence.logprobs, trained[len(request.tokens) - 1 :], atol=1e-4)
    engine.save_adapter("a", tmp_path / "a")
    oracle = Oracle(tiny, tmp_path / "a")
    np.testing.assert_allclose(
        sequence.logprobs, _logprobs(oracle, request.tokens, sequence.tokens), atol=1e-4
    )


def test_tempered_logprobs_are_of_the_tempered_distribution(engine, tiny) -> None:
    request = sample_request(max_tokens=20, seed=1, temperature=0.6, top_k=20, stop=[])
    (sequence,) = run_samples(engine, request)["r"].sequences
    expected = _logprobs(Oracle(tiny), request.tokens, sequence.tokens, temperature=0.6)
    np.testing.assert_allclose(sequence.logprobs, expected, atol=1e-4)


def test_seeded_samples_do_not_depend_on_the_batch(engine) -> None:
    engine.create_adapter("a", "tiny", LoraSpec(rank=4))
    warm_up(engine, "a")
    engine.snapshot("a", "s")
    fields = {"sampler_id": "s", "max_tokens": 30, "seed": 5, "num_samples": 3, "top_p": 0.9}
    alone = run_samples(engine, sample_request("x", **fields))["x"].sequences
    company = [
        sample_request(f"r{i}", tokens=tokens(3 + i), sampler_id="s" if i % 2 else None, seed=i)
        for i in range(7)
    ]
    crowded = run_samples(engine, *company, sample_request("x", **fields))["x"].sequences
    for one, other in zip(alone, crowded, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
    assert len({tuple(sequence.tokens) for sequence in alone}) == 3
    one_only = run_samples(engine, sample_request("x", **{**fields, "num_samples": 1}))["x"]
    np.testing.assert_array_equal(one_only.sequences[0].tokens, alone[0].tokens)


def test_unseeded_samples_differ(engine) -> None:
    request = sample_request(num_samples=4, max_tokens=12)
    answers = {tuple(s.tokens) for s in run_samples(engine, request)["r"].sequences}
    assert len(answers) == 4


@pytest.mark.parametrize(
    ("rule", "allowed"),
    [({}, 272), ({"top_k": 3}, 3), ({"top_p": 0.5}, None), ({"temperature": 0.5}, 272)],
    ids=["plain", "top_k", "top_p", "temperature"],
)
def test_first_tokens_follow_the_distribution(rule, allowed, engine, tiny) -> None:
    count = 4000
    request = sample_request(max_tokens=1, num_samples=count, seed=11, **rule)
    result = run_samples(engine, request)["r"]
    seen = np.bincount([int(s.tokens[0]) for s in result.sequences], minlength=272) / count
    with torch.no_grad():
        logits = Oracle(tiny).all_logprobs(request.tokens)[-1].double()
    probs = (logits / rule.get("temperature", 1.0)).softmax(-1).numpy()
    order = np.argsort(-probs)
    kept = order[:allowed]
    if allowed is None:
        kept = order[: int((np.cumsum(probs[order]) < rule["top_p"]).sum()) + 1]
    expected = np.zeros(272)
    expected[kept] = probs[kept] / probs[kept].sum()
    assert seen[expected == 0].sum() == 0
    # Four standard deviations of a frequency, for every token at once.
    assert np.all(np.abs(seen - expected) < 4.5 * np.sqrt(expected / count) + 1e-3)


def test_stop_token_ends_and_is_returned(engine) -> None:
    free = run_samples(engine, sample_request(seed=3, max_tokens=20, stop=[]))["r"]
    answer = free.sequences[0].tokens
    stop = int(answer[7])
    first = int(np.flatnonzero(answer == stop)[0])
    stopped = run_samples(engine, sample_request(seed=3, max_tokens=20, stop=[stop]))[
        "r"
    ].sequences[0]
    np.testing.assert_array_equal(stopped.tokens, answer[: first + 1])
    assert stopped.stop_reason == "stop"
    assert len(stopped.logprobs) == len(stopped.tokens)


def test_stop_string_across_tokens_ends_and_is_returned(engine) -> None:
    request = sample_request(seed=3, max_tokens=60, stop=[])
    answer = run_samples(engine, request)["r"].sequences[0].tokens
    # Two neighbours that are plain ASCII: with this tokenizer every character is its own token.
    place = next(i for i in range(3, 59) if 33 <= answer[i] < 127 and 33 <= answer[i + 1] < 127)
    text = chr(answer[place]) + chr(answer[place + 1])
    stopped = run_samples(
        engine,
        sample_request(seed=3, max_tokens=60, stop=["\0never", text]),
    )["r"].sequences[0]
    np.testing.assert_array_equal(stopped.tokens, answer[: place + 2])
    assert stopped.stop_reason == "stop"


def test_eos_stops_unless_switched_off(tiny, tmp_path) -> None:
    import json
    import shutil

    folder = shutil.copytree(tiny, tmp_path / "m")
    free = TorchEngine(EngineOptions(models={"tiny": str(folder)}))
    answer = run_samples(free, sample_request(seed=4, max_tokens=9, stop=[]))["r"]
    eos = int(answer.sequences[0].tokens[4])
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [eos]}))
    engine = TorchEngine(EngineOptions(models={"tiny": str(folder)}))
    ended = run_samples(engine, sample_request("a", seed=4, max_tokens=9))["a"].sequences[0]
    never = run_samples(engine, sample_request("b", seed=4, max_tokens=9, stop=[]))["b"]
    assert ended.stop_reason == "stop"
    assert int(ended.tokens[-1]) == eos
    assert len(ended.tokens) <= 5
    np.testing.assert_array_equal(never.sequences[0].tokens, answer.sequences[0].tokens)


def test_prompt_scores_are_the_oracles(engine, tiny) -> None:
    prompt = tokens(9)
    targets = np.array([[3, -1], [-1, -1], [5, 9], [0, 271], [1, 2], [-1, 7], [8, 8], [4, 4]])
    request = sample_request(
        tokens=prompt,
        max_tokens=1,
        prompt_logprobs=True,
        topk_prompt_logprobs=4,
        target_prompt_logprobs=targets,
        prompt_alt_tokens_k=3,
        temperature=0.7,
        seed=2,
    )
    result = run_samples(engine, request)["r"]
    with torch.no_grad():
        scores = Oracle(tiny).all_logprobs(prompt)[:-1].numpy()
    rows = np.arange(8)
    assert np.isnan(result.prompt_logprobs[0])
    np.testing.assert_allclose(result.prompt_logprobs[1:], scores[rows, prompt[1:]], atol=2e-5)
    best = -np.sort(-scores, axis=1)[:, :4]
    np.testing.assert_allclose(result.topk_prompt.logprobs[1:], best, atol=2e-5)
    np.testing.assert_array_equal(
        result.topk_prompt.token_ids[1:], np.argsort(-scores, axis=1)[:, :4]
    )
    assert result.topk_prompt.logprobs[0].tolist() == [-99999.0] * 4
    expected = np.where(targets < 0, 0, scores[rows[:, None], targets.clip(0)])
    np.testing.assert_allclose(result.target_prompt_logprobs, expected, atol=2e-5)
    alt = result.prompt_alt
    np.testing.assert_allclose(alt.logprobs, scores[rows[:, None], alt.token_ids], atol=2e-5)
    assert len(np.unique(alt.token_ids)) > 3


def test_last_n_scores_only_the_suffix(engine) -> None:
    full = sample_request("f", tokens=tokens(9), max_tokens=1, prompt_logprobs=True)
    last = sample_request(
        "l",
        tokens=tokens(9),
        max_tokens=1,
        prompt_logprobs=True,
        prompt_logprobs_last_n=3,
        topk_prompt_logprobs=2,
    )
    results = run_samples(engine, full, last)
    assert np.isnan(results["l"].prompt_logprobs[:6]).all()
    np.testing.assert_allclose(
        results["l"].prompt_logprobs[6:], results["f"].prompt_logprobs[6:], atol=1e-6
    )
    assert (results["l"].topk_prompt.logprobs[:6] == -99999.0).all()
    assert (results["l"].topk_prompt.logprobs[6:] > -99.0).all()


def test_prompt_of_one_token_can_be_scored_and_continued(engine) -> None:
    request = sample_request(
        tokens=tokens(1), prompt_logprobs=True, topk_prompt_logprobs=2, stop=[]
    )
    result = run_samples(engine, request)["r"]
    assert np.isnan(result.prompt_logprobs).all()
    assert len(result.sequences[0].tokens) == 8


def test_topk_of_samples_holds_the_greedy_choice_first(engine) -> None:
    request = sample_request(temperature=0.0, topk_sample_logprobs=3, stop=[])
    (sequence,) = run_samples(engine, request)["r"].sequences
    assert sequence.topk.token_ids.shape == (8, 3)
    np.testing.assert_array_equal(sequence.topk.token_ids[:, 0], sequence.tokens)
    np.testing.assert_allclose(sequence.topk.logprobs[:, 0], sequence.logprobs, atol=1e-6)


def test_snapshot_keeps_its_numbers_while_training_goes_on(engine) -> None:
    engine.create_adapter("a", "tiny", LoraSpec(rank=4))
    warm_up(engine, "a")
    engine.snapshot("a", "s")
    request = sample_request(sampler_id="s", max_tokens=1, prompt_logprobs=True)
    before = run_samples(engine, request)["r"].prompt_logprobs
    warm_up(engine, "a")
    engine.unload_adapter("a")
    np.testing.assert_array_equal(run_samples(engine, request)["r"].prompt_logprobs, before)
    base = run_samples(engine, sample_request(max_tokens=1, prompt_logprobs=True))["r"]
    assert np.abs(base.prompt_logprobs[1:] - before[1:]).max() > 0.01


def test_unloaded_sampler_still_ends_its_running_requests(engine) -> None:
    engine.create_adapter("a", "tiny", LoraSpec(rank=4))
    engine.snapshot("a", "s")
    engine.submit_sample(sample_request(sampler_id="s"))
    engine.unload_sampler("s")
    with pytest.raises(EngineUserError, match="no sampler 's'"):
        engine.submit_sample(sample_request("later", sampler_id="s"))
    assert run_samples(engine).keys() == {"r"}


def test_full_cache_sends_sequences_back_and_changes_nothing(tiny) -> None:
    requests = [
        sample_request(f"r{i}", tokens=tokens(40 + i), max_tokens=90, seed=i, stop=[])
        for i in range(4)
    ]
    roomy = TorchEngine(EngineOptions(models={"tiny": str(tiny)}))
    tight = TorchEngine(EngineOptions(models={"tiny": str(tiny)}, cache_tokens=320))
    expected, found = run_samples(roomy, *requests), run_samples(tight, *requests)
    for name, result in expected.items():
        np.testing.assert_array_equal(result.sequences[0].tokens, found[name].sequences[0].tokens)


def test_num_samples_beyond_all_seats_take_turns(tiny) -> None:
    engine = TorchEngine(EngineOptions(models={"tiny": str(tiny)}, max_sequences=3))
    request = sample_request(num_samples=8, seed=1, stop=[])
    roomy = TorchEngine(EngineOptions(models={"tiny": str(tiny)}))
    few, many = (run_samples(e, request)["r"].sequences for e in (engine, roomy))
    for one, other in zip(few, many, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)


def test_cancelled_requests_give_no_result_and_leave_the_others(engine) -> None:
    engine.submit_sample(sample_request("gone", max_tokens=400, stop=[]))
    engine.submit_sample(sample_request("kept", max_tokens=12, stop=[]))
    engine.step_sampling(0.0)
    engine.submit_sample(sample_request("gone too"))
    engine.cancel_sample("gone")
    engine.cancel_sample("gone too")
    engine.cancel_sample("never seen")
    assert run_samples(engine).keys() == {"kept"}
    assert engine.step_sampling(0.0) == SamplingProgress(finished=[], running=0, waiting=0)


def test_answer_ends_with_the_context(tiny) -> None:
    engine = TorchEngine(EngineOptions(models={"tiny": str(tiny)}, context_length=20))
    request = sample_request(max_tokens=None, stop=[])
    (sequence,) = run_samples(engine, request)["r"].sequences
    assert len(sequence.tokens) == 14
    assert sequence.stop_reason == "length"


@pytest.mark.parametrize("error", [RuntimeError("no memory"), IndexError("a defect")])
def test_failure_inside_sampling_is_an_answer_and_the_engine_lives_on(
    engine, monkeypatch, caplog, error
) -> None:
    runner = engine._base("tiny").sampler._runner

    def fail(*_: object) -> None:
        raise error

    engine.submit_sample(sample_request("lost"))
    with monkeypatch.context() as patch:
        patch.setattr(runner, "run", fail)
        (result,) = engine.step_sampling(0.0).finished
    assert result.request_id == "lost"
    assert result.error is not None
    assert result.error.kind == "server"
    assert [record.exc_info[1] for record in caplog.records] == [error], "with its traceback"
    assert run_samples(engine, sample_request("next")).keys() == {"next"}


def test_a_failure_while_a_prompt_gets_its_blocks_loses_none_of_them(engine, monkeypatch) -> None:
    sampler = engine._base("tiny").sampler

    def fail(*_: object) -> None:
        raise IndexError("a defect")

    engine.submit_sample(sample_request("lost"))
    with monkeypatch.context() as patch:
        patch.setattr(sampler._prefill_queue, "_half_way", fail)
        (result,) = engine.step_sampling(0.0).finished
    assert result.request_id == "lost"
    assert sampler._pool.num_owned == 0
