"""Each sampling parameter does what transformers, or its published formula, says."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
)

from tests.engine.oracle import Oracle
from tests.engine.work import run_samples, sample_request, tokens
from tinkex.engine.base_model import load_base_model
from tinkex.engine.interface import SampleRequest
from tinkex.engine.options import EngineOptions
from tinkex.engine.runner_choice import runner_for
from tinkex.engine.sampling.logits_processors import BUILTIN, Pipeline, Row
from tinkex.engine.sampling.prefill_queue import SamplerLimits
from tinkex.engine.sampling.sampler import Sampler
from tinkex.engine.sampling.token_choice import choose
from tinkex.engine.sampling.token_history import TokenHistory
from tinkex.engine.torch_engine import TorchEngine
from tinkex.types import SamplingParams
from tinkex.types._parameters import Parameter

VOCAB = 272

SETTINGS = {
    "min_p": {"min_p": 0.3},
    "repetition_penalty": {"repetition_penalty": 1.7},
    "repetition_reward": {"repetition_penalty": 0.6},
    "presence_penalty": {"presence_penalty": 1.5},
    "frequency_penalty": {"frequency_penalty": 0.8},
    "frequency_reward": {"frequency_penalty": -0.7},
    "logit_bias": {"logit_bias": {5: 3.0, 9: -100.0, 200: 2.5}},
    "all": {
        "min_p": 0.05,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.3,
        "logit_bias": {7: 2.0, 100: -1.0},
        "top_k": 40,
        "top_p": 0.9,
        "temperature": 0.8,
    },
}


def adjusted(logits: np.ndarray, prompt: list[int], answer: list[int], params) -> torch.Tensor:
    """One row of logits after bias, penalties and temperature, by the published formulas."""
    row = logits.astype(np.float64)
    for token, bias in (params.logit_bias or {}).items():
        row[token] += bias
    if params.repetition_penalty != 1.0:
        ids = torch.tensor([[*prompt, *answer]])
        processor = RepetitionPenaltyLogitsProcessor(params.repetition_penalty)
        row = processor(ids, torch.from_numpy(row)[None])[0].numpy()
    for token, count in Counter(answer).items():
        row[token] -= params.frequency_penalty * count + params.presence_penalty
    return torch.from_numpy(row) / (params.temperature or 1.0)


def allowed(row: torch.Tensor, params) -> np.ndarray:
    """The probabilities to draw from: min_p by transformers, then top_k, then top_p."""
    if params.min_p:
        row = MinPLogitsWarper(params.min_p)(None, row[None])[0]
    probs = row.softmax(-1).numpy()
    order = np.argsort(-probs, kind="stable")
    kept = order[: params.top_k] if params.top_k > 0 else order
    shares = np.cumsum(probs[kept]) / probs[kept].sum()
    if params.top_p < 1.0:
        kept = kept[: int((shares < params.top_p).sum()) + 1]
    left = np.zeros_like(probs)
    left[kept] = probs[kept] / probs[kept].sum()
    return left


def check_answer(oracle: Oracle, request: SampleRequest, sequence) -> None:
    """Every token of an answer is one the parameters allow, with the logprob they give it."""
    prompt, answer = request.tokens.tolist(), sequence.tokens.tolist()
    with torch.no_grad():
        logits = oracle.model(torch.tensor([[*prompt, *answer]])).logits[0].numpy()
    for step, token in enumerate(answer):
        row = adjusted(logits[len(prompt) - 1 + step], prompt, answer[:step], request.params)
        assert sequence.logprobs[step] == pytest.approx(float(row.log_softmax(-1)[token]), abs=2e-4)
        if request.params.temperature == 0:
            assert float(row.max() - row[token]) < 2e-4
        else:
            assert (
                allowed(
                    row + torch.nn.functional.one_hot(torch.tensor(token), len(row)) * 1e-4,
                    request.params,
                )[token]
                > 0
            )


@pytest.fixture(scope="module")
def oracle(tiny) -> Oracle:
    return Oracle(tiny)


@pytest.mark.usefixtures("with_and_without_kernels")
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", SETTINGS)
def test_answers_follow_the_formulas(name, temperature, tiny, oracle) -> None:
    engine = TorchEngine(EngineOptions(models={"tiny": str(tiny)}))
    fields = {**SETTINGS[name], "temperature": temperature, "stop": [], "max_tokens": 40}
    request = sample_request(seed=3, num_samples=3, **fields)
    sequences = run_samples(engine, request)["r"].sequences
    for sequence in sequences:
        check_answer(oracle, request, sequence)
    # Each sample has a history of its own, or they would be penalised for each other's tokens.
    assert len({tuple(each.tokens) for each in sequences}) == (3 if temperature else 1)


@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "min_p"])
def test_a_parameter_changes_the_greedy_answer(name, engine) -> None:
    fields = {"temperature": 0.0, "stop": [], "max_tokens": 40}
    changed = {**SETTINGS[name], **fields}
    done = run_samples(engine, sample_request("off", **fields), sample_request("on", **changed))
    assert done["on"].sequences[0].tokens.tolist() != done["off"].sequences[0].tokens.tolist()


@pytest.mark.parametrize("name", SETTINGS)
def test_first_tokens_follow_the_distribution(name, engine, oracle) -> None:
    count = 4000
    request = sample_request(max_tokens=1, num_samples=count, seed=11, **SETTINGS[name])
    result = run_samples(engine, request)["r"]
    seen = np.bincount([int(s.tokens[0]) for s in result.sequences], minlength=VOCAB) / count
    prompt = request.tokens.tolist()
    with torch.no_grad():
        logits = oracle.model(torch.tensor([prompt])).logits[0, -1].numpy()
    expected = allowed(adjusted(logits, prompt, [], request.params), request.params)
    assert seen[expected == 0].sum() == 0
    # 4.5 standard deviations of a frequency, for every token at once.
    assert np.all(np.abs(seen - expected) < 4.5 * np.sqrt(expected / count) + 1e-3)


@pytest.mark.usefixtures("with_and_without_kernels")
def test_a_mixed_batch_gives_each_request_what_it_gets_alone(engine) -> None:
    fields = {"stop": [], "max_tokens": 30, "num_samples": 2}
    requests = [
        sample_request(
            f"{name} {temperature}", seed=n, **{**settings, "temperature": temperature}, **fields
        )
        for n, (name, settings) in enumerate(
            {**SETTINGS, "plain": {}, "top_p": {"top_p": 0.8}}.items()
        )
        for temperature in (0.0, 0.9)
    ]
    together = run_samples(engine, *requests)
    for request in requests:
        alone = run_samples(engine, request)[request.request_id]
        for one, other in zip(alone.sequences, together[request.request_id].sequences, strict=True):
            np.testing.assert_array_equal(one.tokens, other.tokens)
            np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)


@pytest.mark.usefixtures("with_and_without_kernels")
@pytest.mark.parametrize("options", [{"cache_tokens": 320}, {"max_sequences": 2}], ids=str)
def test_preempted_sequences_go_on_with_their_counts(options, tiny) -> None:
    requests = [
        sample_request(
            f"r{i}", tokens=tokens(40 + i), seed=i, **SETTINGS["all"], stop=[], max_tokens=90
        )
        for i in range(4)
    ]
    roomy = TorchEngine(EngineOptions(models={"tiny": str(tiny)}))
    tight = TorchEngine(EngineOptions(models={"tiny": str(tiny)}, **options))
    expected, found = run_samples(roomy, *requests), run_samples(tight, *requests)
    for name, result in expected.items():
        np.testing.assert_array_equal(result.sequences[0].tokens, found[name].sequences[0].tokens)


def test_prompt_scores_are_the_models_own(engine) -> None:
    fields = {"max_tokens": 1, "prompt_logprobs": True, "topk_prompt_logprobs": 3, "seed": 1}
    fields["prompt_alt_tokens_k"] = 2
    done = run_samples(
        engine,
        sample_request("plain", **fields),
        sample_request("all", **fields, **{**SETTINGS["all"], "temperature": 1.0}),
    )
    plain, changed = done["plain"], done["all"]
    np.testing.assert_array_equal(plain.prompt_logprobs[1:], changed.prompt_logprobs[1:])
    np.testing.assert_array_equal(plain.topk_prompt.logprobs, changed.topk_prompt.logprobs)
    np.testing.assert_array_equal(plain.prompt_alt.token_ids, changed.prompt_alt.token_ids)


def test_top_logprobs_of_samples_are_after_bias_and_penalties(engine) -> None:
    request = sample_request(
        temperature=0.0, topk_sample_logprobs=3, logit_bias={5: 50.0}, frequency_penalty=2.0
    )
    (sequence,) = run_samples(engine, request)["r"].sequences
    np.testing.assert_array_equal(sequence.topk.token_ids[:, 0], sequence.tokens)
    np.testing.assert_allclose(sequence.topk.logprobs[:, 0], sequence.logprobs, atol=1e-6)
    assert set(sequence.tokens.tolist()) == {5}


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_k=st.sampled_from([-1, 3, 50]),
    top_p=st.sampled_from([1.0, 0.9, 0.2]),
    min_p=st.sampled_from([0.0, 0.02, 0.5, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 0.01, 1.3, 100.0]),
    presence_penalty=st.sampled_from([0.0, -2.0, 1.1]),
    frequency_penalty=st.sampled_from([0.0, 2.0, -0.3]),
    logit_bias=st.sampled_from([None, {0: 100.0}, {1: -100.0, 6: 3.0}]),
)


@settings(max_examples=80, deadline=None)
@given(
    rows=st.lists(st.tuples(PARAMS, st.floats(0, 0.999)), min_size=1, max_size=8),
    vocab=st.sampled_from([7, 256, 300]),
    seed=st.integers(0, 99),
)
def test_every_row_follows_its_own_parameters(rows, vocab, seed) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, (len(rows), vocab)).astype(np.float32)
    texts = [(rng.integers(0, vocab, 5).tolist(), rng.integers(0, vocab, 9).tolist()) for _ in rows]
    processed = []
    for index, ((params, _), (prompt, answer)) in enumerate(zip(rows, texts, strict=True)):
        history = TokenHistory(np.unique(prompt))
        for token in answer:
            history.add(token)
        if BUILTIN.is_active(params):
            processed.append(Row(index, params, history))
    choice = choose(
        torch.from_numpy(logits.copy()),
        [params for params, _ in rows],
        [number for _, number in rows],
        processed,
    )
    for index, ((params, _), (prompt, answer)) in enumerate(zip(rows, texts, strict=True)):
        row = adjusted(logits[index], prompt, answer, params)
        token = int(choice.token_N[index])
        expected = float(row.log_softmax(-1)[token])
        # float32 has seven digits, also of the logits that a probability is computed from.
        digits = 3e-7 * max(1.0, float(row.abs().max()))
        assert float(choice.logprob_N[index]) == pytest.approx(
            expected, rel=1e-5, abs=1e-5 + digits
        )
        if params.temperature == 0:
            assert float(row.max() - row[token]) <= digits
        else:
            near = row + torch.nn.functional.one_hot(torch.tensor(token), vocab) * (1e-4 + digits)
            assert allowed(near, params)[token] > 0


def test_a_filtered_token_is_never_drawn_at_the_edge_of_a_block() -> None:
    # The last tokens of the block have no probability left, and the number is as high as it gets;
    # which sum of the block is the larger, the float32 or the float64 one, is different each time.
    params = SamplingParams(min_p=0.5)
    for seed in range(40):
        logits = torch.rand(1, 256, generator=torch.Generator().manual_seed(seed)) * 0.1
        logits[0, 200:] = -20.0
        choice = choose(logits, [params], [1 - 2**-53], [Row(0, params, None)])
        assert int(choice.token_N[0]) == 199


def test_counts_grow_with_each_token() -> None:
    history = TokenHistory(np.array([3, 5]))
    answer = np.random.default_rng(0).integers(0, 60, 500).tolist()
    for token in answer:
        history.add(token)
    assert dict(zip(history.output_ids.tolist(), history.output_counts, strict=True)) == Counter(
        answer
    )
    assert set(history.all_ids.tolist()) == {3, 5, *answer}


class ToyParams(SamplingParams, frozen=True, kw_only=True):
    """A parameter that this package does not have."""

    only_even: Annotated[int, Parameter(at_least=0, at_most=1, metavar="N", help="1 is on.")] = 0


class OnlyEven:
    """Forbids tokens with odd ids."""

    reads_history = False

    def is_active(self, params: ToyParams) -> bool:
        return bool(getattr(params, "only_even", 0))

    def apply(self, values_NV: torch.Tensor, rows) -> None:
        for row in rows:
            values_NV[row.index, 1::2] = 0.0


def test_top_p_is_a_share_of_what_filters_leave() -> None:
    probs = np.full(1000, 0.1 / 999)
    probs[1] = 0.9  # forbidden: the other 500 even tokens share what is left
    params = ToyParams(only_even=1, top_p=0.5)
    drawn = [
        choose(
            torch.from_numpy(np.log(probs)).float()[None],
            [params],
            [number],
            [Row(0, params, None)],
            Pipeline((), (OnlyEven(),)),
        ).token_N.item()
        for number in np.linspace(0.001, 0.999, 101)
    ]
    assert len(set(drawn)) == 101
    assert not any(token % 2 for token in drawn)


def test_a_parameter_from_outside_is_a_field_and_a_processor(tiny) -> None:
    base = load_base_model("tiny", tiny, EngineOptions(models={}))
    limits = SamplerLimits(
        cache_tokens=1024,
        prefill_tokens=256,
        beside_tokens=256,
        max_sequences=8,
        stack_bytes=1 << 20,
        reuses_prompts=True,
    )
    sampler = Sampler(
        runner_for(base.backbone, limits, with_kernels=False),
        base.info,
        lambda _: "",
        limits,
        Pipeline(BUILTIN.on_logits, (*BUILTIN.on_probs, OnlyEven())),
    )
    for name, params in (
        ("even", ToyParams(only_even=1, max_tokens=40, seed=1, stop=[], min_p=0.001)),
        ("any", SamplingParams(max_tokens=40, seed=1, stop=[], min_p=0.001)),
    ):
        request = SampleRequest(request_id=name, model="tiny", tokens=tokens(6), params=params)
        sampler.submit(request, None)
    done = {}
    while len(done) < 2:
        done |= {result.request_id: result.sequences[0].tokens % 2 for result in sampler.step()}
    assert not done["even"].any()
    assert done["any"].any()
