"""Sampling through the official client, each number against transformers and peft.

python -m tests.contract.sampling_scenarios [part of a scenario's name ...]
"""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tinker
import torch
from tinker import types

from tests.contract.world import (
    CONTEXT,
    EOS,
    MODEL,
    REFUSED,
    TWIN,
    World,
    datum,
    is_user_error,
    logprobs_of,
    prompt,
    run_scenarios,
    scenario,
    scenario_of,
)
from tests.engine.oracle import Oracle
from tests.engine.work import tokens

PROMPT = tokens(7, 1).tolist()
SEED = 1234


def _all_logprobs(oracle: Oracle, ids: list[int], temperature: float = 1.0) -> np.ndarray:
    """[T, V] logprobs of what follows each token, tempered."""
    with torch.no_grad():
        logits = oracle.model(torch.tensor(ids)[None]).logits[0]
        return (logits / temperature).log_softmax(-1).numpy()


def _scores(oracle: Oracle, ids: list[int], temperature: float = 1.0) -> np.ndarray:
    """The logprob of each token after the first."""
    return np.take_along_axis(
        _all_logprobs(oracle, ids, temperature)[:-1], np.array(ids[1:])[:, None], 1
    )[:, 0]


def _sample(
    sampler: tinker.SamplingClient, count: int = 1, ids: list[int] = PROMPT, **params: Any
) -> types.SampleResponse:
    return sampler.sample(prompt(ids), count, types.SamplingParams(**params)).result()


def _tokens(answer: types.SampleResponse) -> list[list[int]]:
    return [[int(token) for token in each.tokens] for each in answer.sequences]


# --- choosing tokens


@scenario_of("smollm", "qwen2", "qwen3", "llama", "mistral")
def greedy(world: World, shape: str) -> None:
    """The oracle's likeliest token at every step, with its untempered logprob."""
    sampler = world.trained(shape).save_weights_and_get_sampling_client()
    oracle = world.oracle(shape, world.exported(world.trained(shape)))
    answer = _sample(sampler, max_tokens=20, temperature=0.0, stop=[])
    (ours,) = _tokens(answer)
    ids = PROMPT + ours
    best = _all_logprobs(oracle, ids)[len(PROMPT) - 1 : -1].argmax(-1)
    assert ours == best.tolist()
    assert answer.sequences[0].stop_reason == "length"
    world.agree(
        "sampled and oracle", answer.sequences[0].logprobs, _scores(oracle, ids)[-20:], 1e-4
    )


@scenario_of("0.5", "1.0", "2.0")
def sampled_logprobs_are_of_the_tempered_distribution(world: World, temperature: str) -> None:
    sampler = world.trained().save_weights_and_get_sampling_client()
    training = world.trained()
    oracle = world.oracle(adapter=world.exported(training))
    answer = _sample(
        sampler, 3, max_tokens=15, temperature=float(temperature), seed=SEED, top_p=0.9, stop=[]
    )
    for sequence in answer.sequences:
        ids = PROMPT + [int(token) for token in sequence.tokens]
        expected = _scores(oracle, ids, float(temperature))[-15:]
        world.agree("sampled and oracle", sequence.logprobs, expected, 1e-4)
        raw = sampler.compute_logprobs(prompt(ids)).result()[-15:]
        world.agree("compute_logprobs and oracle", raw, _scores(oracle, ids)[-15:], 1e-4)
        if temperature == "1.0":
            world.agree("sampled and compute_logprobs", sequence.logprobs, raw, 1e-4)
            world.agree(
                "sampled and trainer", sequence.logprobs, _trained_scores(training, ids), 1e-4
            )


def _trained_scores(training: tinker.TrainingClient, ids: list[int]) -> np.ndarray:
    example = types.Datum(
        model_input=prompt(ids[:-1]),
        loss_fn_inputs={"target_tokens": ids[1:], "weights": [1.0] * (len(ids) - 1)},
    )
    output = training.forward([example], "cross_entropy").result()
    return logprobs_of(output)[len(PROMPT) - 1 :]


@scenario_of("all", "top_k", "top_p", "top_k_and_top_p", "tempered_top_p")
def first_tokens_follow_the_distribution(world: World, case: str) -> None:
    """Nothing outside the cut is ever drawn, and what is inside as often as it should be."""
    params: dict[str, Any] = {
        "all": {},
        "top_k": {"top_k": 5},
        "top_p": {"top_p": 0.4},
        "top_k_and_top_p": {"top_k": 20, "top_p": 0.5},
        "tempered_top_p": {"top_p": 0.4, "temperature": 0.5},
    }[case]
    oracle, sampler = world.oracle(), world.service.create_sampling_client(base_model=MODEL)
    probs = np.exp(_all_logprobs(oracle, PROMPT, params.get("temperature", 1.0))[-1].astype(float))
    order = np.argsort(-probs, kind="stable")
    if "top_k" in params:
        order = order[: params["top_k"]]
    inside = probs[order] / probs[order].sum()
    if "top_p" in params:
        count = int((np.cumsum(inside) < params["top_p"]).sum()) + 1
        order, inside = order[:count], inside[:count] / inside[:count].sum()
    draws = 1000
    answer = _sample(sampler, draws, max_tokens=1, seed=SEED, stop=[], **params)
    found = np.array([tokens_[0] for tokens_ in _tokens(answer)])
    assert set(found) <= set(order.tolist())
    counts = np.array([(found == token).sum() for token in order])
    sigma = np.sqrt(draws * inside * (1 - inside)) + 1
    assert (np.abs(counts - draws * inside) < 5 * sigma).all()
    for sequence in answer.sequences[:20]:
        world.agree(
            "sampled and oracle", np.exp(sequence.logprobs[0]), probs[sequence.tokens[0]], 1e-5
        )


@scenario
def the_same_seed_gives_the_same_tokens_whatever_else_runs(world: World) -> None:
    sampler = world.trained().save_weights_and_get_sampling_client()
    noisy = world.service.create_sampling_client(base_model=MODEL)
    training = world.trained(seed=77)
    params = {"max_tokens": 40, "seed": SEED, "temperature": 1.1, "top_p": 0.95, "stop": []}
    alone = _sample(sampler, 3, **params)
    futures = [
        noisy.sample(
            prompt(tokens(5 + n, n)), 2, types.SamplingParams(max_tokens=10 + 3 * n, stop=[])
        )
        for n in range(15)
    ]
    updates = [training.forward_backward([datum(30, n)], "cross_entropy") for n in range(5)]
    with ThreadPoolExecutor(3) as pool:
        company = list(pool.map(lambda _: _sample(sampler, 3, **params), range(3)))
    for answer in company:
        assert _tokens(answer) == _tokens(alone)
        for ours, theirs in zip(answer.sequences, alone.sequences, strict=True):
            world.agree("logprobs alone and in company", ours.logprobs, theirs.logprobs, 1e-5)
    assert len({tuple(each) for each in _tokens(alone)}) == 3, "samples of one request differ"
    assert _tokens(_sample(sampler, 3, **{**params, "seed": SEED + 1})) != _tokens(alone)
    assert _tokens(_sample(sampler, 1, **params)) == _tokens(alone)[:1]
    free = {**params, "seed": None}
    assert _tokens(_sample(sampler, 1, **free)) != _tokens(_sample(sampler, 1, **free))
    for future in [*futures, *updates]:
        future.result()


# --- where an answer ends


@scenario
def stop_tokens_end_an_answer_and_belong_to_it(world: World) -> None:
    sampler = world.service.create_sampling_client(base_model=MODEL)
    (free,) = _tokens(_sample(sampler, max_tokens=30, seed=SEED, stop=[]))
    stops = [free[12], free[20]]
    answer = _sample(sampler, max_tokens=30, seed=SEED, stop=stops)
    cut = min(free.index(stop) for stop in stops) + 1
    assert _tokens(answer) == [free[:cut]]
    assert answer.sequences[0].stop_reason == "stop"
    assert len(answer.sequences[0].logprobs or []) == cut


@scenario
def stop_strings_end_an_answer_across_the_borders_of_tokens(world: World) -> None:
    sampler = world.service.create_sampling_client(base_model=MODEL)
    tokenizer = sampler.get_tokenizer()
    (free,) = _tokens(_sample(sampler, max_tokens=120, seed=SEED, stop=[]))
    place, text = next(
        (n, tokenizer.decode(free[n : n + 2]))
        for n in range(5, 119)
        if all(33 <= token < 127 for token in free[n : n + 2])
    )
    assert len(text) == 2, "each token is one letter"
    first = next(n for n in range(len(free)) if text in tokenizer.decode(free[: n + 1]))
    assert first <= place + 1
    for stop in (text, [text], ["never said", text]):
        answer = _sample(sampler, max_tokens=120, seed=SEED, stop=stop)
        ours = _until_eos(free, first + 1)
        assert _tokens(answer) == [ours], "the string is part of the answer"
        assert answer.sequences[0].stop_reason == "stop"


def _until_eos(free: list[int], length: int) -> list[int]:
    """The answer's first tokens, cut after an end-of-sequence token before that."""
    kept = free[:length]
    return kept[: kept.index(EOS) + 1] if EOS in kept else kept


@scenario
def eos_ends_an_answer_unless_nothing_may(world: World) -> None:
    sampler = world.service.create_sampling_client(base_model=MODEL)
    params = {"seed": SEED, "temperature": 1.6}
    free = _sample(sampler, 6, stop=[], **params)
    room = CONTEXT - len(PROMPT)
    assert [len(each) for each in _tokens(free)] == [room] * 6, (
        "max_tokens omitted fills the context"
    )
    assert {each.stop_reason for each in free.sequences} == {"length"}
    assert any(EOS in each[:-1] for each in _tokens(free)), "it went on beyond the end"
    for answer in (
        _sample(sampler, 6, **params),
        _sample(sampler, 6, stop=["\u20acnever"], **params),
    ):
        for ended, whole in zip(answer.sequences, _tokens(free), strict=True):
            assert list(ended.tokens) == _until_eos(whole, room)
            assert ended.stop_reason == ("stop" if EOS in whole else "length")


@scenario
def max_tokens_is_cut_where_the_context_ends(world: World) -> None:
    sampler = world.service.create_sampling_client(base_model=MODEL)
    long = tokens(CONTEXT - 4, 2).tolist()
    answer = _sample(sampler, ids=long, max_tokens=50, seed=1, stop=[])
    assert len(answer.sequences[0].tokens) == 4
    assert answer.sequences[0].stop_reason == "length"


# --- what is said about prompts


@scenario
def prompts_are_scored_as_the_oracle_scores_them(world: World) -> None:
    sampler = world.trained().save_weights_and_get_sampling_client()
    oracle = world.oracle(adapter=world.exported(world.trained()))
    ids = tokens(12, 4).tolist()
    rng = np.random.default_rng(5)
    targets = rng.integers(0, 256, (11, 3))
    targets[2, 1] = targets[7] = -1
    answer = sampler.sample(
        prompt(ids),
        2,
        types.SamplingParams(max_tokens=6, seed=1, stop=[]),
        include_prompt_logprobs=True,
        topk_prompt_logprobs=4,
        topk_sample_logprobs=3,
        target_prompt_logprobs=types.TensorData.from_numpy(targets),
    ).result()
    table = _all_logprobs(oracle, ids)
    assert answer.prompt_logprobs is not None
    assert answer.prompt_logprobs[0] is None
    world.agree("prompt logprobs", answer.prompt_logprobs[1:], _scores(oracle, ids), 1e-4)
    rows = answer.topk_prompt_logprobs or []
    assert rows[0] is None
    for row, expected in zip(rows[1:], table[:-1], strict=True):
        best = np.argsort(-expected, kind="stable")[:4]
        assert [token for token, _ in row or []] == best.tolist()
        world.agree("topk prompt logprobs", [score for _, score in row or []], expected[best], 1e-4)
    wanted = np.where(targets < 0, 0.0, np.take_along_axis(table[:-1], targets.clip(0), 1))
    assert answer.target_prompt_logprobs is not None
    world.agree("target prompt logprobs", answer.target_prompt_logprobs.to_numpy(), wanted, 1e-4)
    for sequence in answer.sequences:
        whole = ids + [int(token) for token in sequence.tokens]
        after = _all_logprobs(oracle, whole)[len(ids) - 1 : -1]
        for row, expected in zip(sequence.topk_logprobs or [], after, strict=True):
            best = np.argsort(-expected, kind="stable")[:3]
            assert [token for token, _ in row or []] == best.tolist()
            scores = [score for _, score in row or []]
            world.agree("topk sample logprobs", scores, expected[best], 1e-4)


@scenario
def sparse_targets_come_back_sparse(world: World) -> None:
    sampler = world.service.create_sampling_client(base_model=MODEL)
    ids = tokens(10, 4).tolist()
    targets = torch.full((9, 6), -1, dtype=torch.int64)
    targets[0, 5], targets[3, 0], targets[3, 2], targets[8, 1] = 0, 17, 200, 3
    request = types.TensorData.from_torch_sparse(targets, pad_value=-1)
    assert request.sparse_crow_indices is not None
    answer = sampler.sample(
        prompt(ids), 1, types.SamplingParams(max_tokens=1), target_prompt_logprobs=request
    ).result()
    scored = answer.target_prompt_logprobs
    assert scored is not None
    assert list(scored.sparse_col_indices or []) == [5, 0, 2, 1]
    table = _all_logprobs(world.oracle(), ids)
    expected = [table[0, 0], table[3, 17], table[3, 200], table[8, 3]]
    world.agree("target prompt logprobs", list(scored.data), expected, 1e-4)


@scenario
def only_the_last_prompt_tokens_are_scored_if_asked(world: World) -> None:
    sampler = world.service.create_sampling_client(base_model=MODEL)
    ids = tokens(12, 4).tolist()
    whole = sampler.compute_logprobs(prompt(ids)).result()
    last = sampler.compute_logprobs(prompt(ids), prompt_logprobs_last_n=4).result()
    assert last[:8] == [None] * 8
    world.agree("last prompt logprobs", last[8:], whole[8:], 1e-5)
    every = sampler.compute_logprobs(prompt(ids), prompt_logprobs_last_n=11).result()
    world.agree("last prompt logprobs", every[1:], whole[1:], 1e-5)


@scenario
def alternatives_to_prompt_tokens_have_their_logprobs(world: World) -> None:
    sampler = world.service.create_sampling_client(base_model=MODEL)
    ids = tokens(9, 4).tolist()
    answer = sampler.sample(
        prompt(ids), 1, types.SamplingParams(max_tokens=1, seed=3), prompt_alt_tokens_k=3
    ).result()
    assert answer.prompt_alt_tokens is not None
    chosen = answer.prompt_alt_tokens.tokens.to_numpy()
    assert chosen.shape == (8, 3)
    expected = np.take_along_axis(_all_logprobs(world.oracle(), ids)[:-1], chosen, 1)
    world.agree("alternative tokens", answer.prompt_alt_tokens.logprobs.to_numpy(), expected, 1e-4)


@scenario
def a_prompt_of_one_token(world: World) -> None:
    sampler = world.service.create_sampling_client(base_model=MODEL)
    assert sampler.compute_logprobs(prompt([5])).result() == [None]
    assert len(_tokens(_sample(sampler, ids=[5], max_tokens=3, stop=[]))[0]) == 3


# --- samplers


@scenario
def samplers_of_many_adapters_share_a_batch(world: World) -> None:
    clients = [world.trained(seed=seed) for seed in (1, 2, 3)]
    samplers = [each.save_weights_and_get_sampling_client() for each in clients]
    oracles = [world.oracle(adapter=world.exported(each)) for each in clients]
    base, plain = world.service.create_sampling_client(base_model=MODEL), world.oracle()
    prompts = [tokens(4 + n, n).tolist() for n in range(8)]
    requests = [
        (sampler.compute_logprobs(prompt(ids)), oracle, ids)
        for ids in prompts
        for sampler, oracle in zip([*samplers, base], [*oracles, plain], strict=True)
    ]
    for future, oracle, ids in requests:
        world.agree("adapters in one batch", future.result()[1:], _scores(oracle, ids), 1e-4)


@scenario
def samplers_do_not_move_while_training_goes_on(world: World) -> None:
    training = world.trained()
    ids = tokens(14, 6).tolist()
    params = {"max_tokens": 10, "seed": SEED, "stop": []}
    kept = []
    for step in range(3):
        ephemeral = training.save_weights_and_get_sampling_client()
        path = training.save_weights_for_sampler(f"step-{step}").result().path
        named = world.service.create_sampling_client(model_path=path)
        folder = world.exported(training, f"step-{step}")
        scores = _scores(world.oracle(adapter=folder), ids)
        kept.append((ephemeral, named, scores, _tokens(_sample(named, 2, **params))))
        training.forward_backward([datum(20, step)], "cross_entropy")
        training.optim_step(types.AdamParams(learning_rate=0.05))
    for ephemeral, named, scores, drawn in kept:
        for sampler in (ephemeral, named):
            ours = sampler.compute_logprobs(prompt(ids)).result()[1:]
            world.agree("snapshots, later", ours, scores, 1e-4)
            assert _tokens(_sample(sampler, 2, **params)) == drawn
    gaps = [np.abs(kept[0][2] - scores).max() for _, _, scores, _ in kept[1:]]
    assert min(gaps) > 1e-2, "training went on"


@scenario
def one_base_has_several_names_and_suffixes(world: World) -> None:
    ids = tokens(10, 7).tolist()
    names = [MODEL, TWIN, f"{MODEL}:nitro", f"{TWIN}:v2"]
    samplers = [world.service.create_sampling_client(base_model=name) for name in names]
    scores = [each.compute_logprobs(prompt(ids)).result() for each in samplers]
    assert all(each == scores[0] for each in scores)
    capabilities = world.get("get_server_capabilities")
    listed = {each["model_name"]: each for each in capabilities["supported_models"]}
    assert listed[MODEL]["max_context_length"] == listed[TWIN]["max_context_length"] == CONTEXT
    assert capabilities["aliases"] == {TWIN: MODEL}
    assert capabilities["limits"]["max_rank"] > 0
    path = world.trained().save_state("shared").result().path
    twin = world.service.create_training_client_from_state(path, base_model=f"{TWIN}:x")
    assert twin.get_info().model_data.tokenizer_id == str(world.base(MODEL).resolve())
    assert twin.get_tokenizer().decode([104, 105]) == "hi"
    sampler = world.service.create_sampling_client(model_path=_saved(world.trained()))
    moved = sampler.compute_logprobs(prompt(ids)).result()
    again = twin.save_weights_and_get_sampling_client().compute_logprobs(prompt(ids)).result()
    world.agree("an adapter under two names", again[1:], moved[1:], 0.0)
    fresh = world.service.create_lora_training_client(TWIN, rank=4)
    fresh.load_state(path).result()
    loaded = fresh.save_weights_and_get_sampling_client().compute_logprobs(prompt(ids)).result()
    world.agree("an adapter under two names", loaded[1:], moved[1:], 0.0)
    other = world.service.create_lora_training_client("qwen2", rank=4)
    with pytest.raises(tinker.RequestFailedError, match="trained on smollm, not on qwen2"):
        other.load_state(path).result()
    with pytest.raises(tinker.NotFoundError, match="not served here"):
        world.service.create_sampling_client(base_model="unknown/model")


def _saved(training: tinker.TrainingClient) -> str:
    return str(training.save_weights_for_sampler("saved").result().path)


@scenario
def clones_of_a_sampler_are_the_same_sampler(world: World) -> None:
    sampler = world.trained().save_weights_and_get_sampling_client()
    by_handle = tinker.SamplingClient.from_sampler_handle(
        sampler.get_sampler_handle(), api_key=world.api_key
    )
    by_pickle = pickle.loads(pickle.dumps(sampler))
    params = {"max_tokens": 8, "seed": SEED, "stop": []}
    with ThreadPoolExecutor(3) as pool:
        answers = list(
            pool.map(
                lambda one: _tokens(_sample(one, 2, **params)), [sampler, by_handle, by_pickle]
            )
        )
    assert answers[0] == answers[1] == answers[2]
    assert sampler.get_base_model() == by_handle.get_base_model() == str(world.base().resolve())


@scenario
def a_cancelled_sample_frees_its_place(world: World) -> None:
    sampler = world.connect().create_sampling_client(base_model=MODEL)
    long = types.SamplingParams(max_tokens=480, stop=[])
    futures = [sampler.sample(prompt(PROMPT), 64, long) for _ in range(6)]
    assert all(future.cancel() for future in futures)
    answer = sampler.sample(prompt(PROMPT), 1, types.SamplingParams(max_tokens=2, stop=[]))
    assert len(answer.result(timeout=60).sequences[0].tokens) == 2


@scenario
def ephemeral_samplers_are_freed_with_their_session(world: World) -> None:
    service = world.connect()
    training = service.create_lora_training_client(MODEL, rank=4, seed=1)
    sampler = training.save_weights_and_get_sampling_client()
    _sample(sampler, max_tokens=2)
    handle = sampler.get_sampler_handle()
    service.close("success").result()
    orphan = tinker.SamplingClient.from_sampler_handle(handle, api_key=world.api_key)
    with pytest.raises(REFUSED) as failure:
        orphan.sample(prompt(PROMPT), 1, types.SamplingParams(max_tokens=2)).result(timeout=60)
    assert is_user_error(failure.value)


@scenario
def a_ruined_adapter_is_a_user_error_and_its_neighbours_are_served(world: World) -> None:
    training = world.trained()
    base = world.service.create_sampling_client(base_model=MODEL)
    params = {"max_tokens": 30, "seed": SEED, "stop": []}
    before = _tokens(_sample(base, 2, **params))
    training.forward_backward([datum(9)], "cross_entropy")
    training.optim_step(types.AdamParams(learning_rate=1e30)).result()
    ruined = training.save_weights_and_get_sampling_client()
    long = types.SamplingParams(max_tokens=60, stop=[])
    company = [base.sample(prompt(PROMPT), 1, long) for _ in range(4)]
    for attempt in (
        lambda: _sample(ruined, 2, max_tokens=20),
        lambda: ruined.compute_logprobs(prompt(PROMPT)).result(),
        lambda: training.forward([datum(9)], "cross_entropy").result(),
    ):
        with pytest.raises(tinker.RequestFailedError, match="finite") as failure:
            attempt()
        assert is_user_error(failure.value)
    assert _tokens(_sample(base, 2, **params)) == before
    for future in company:
        assert np.isfinite(future.result().sequences[0].logprobs).all()


# --- mistakes


MISTAKES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "token_above_vocabulary": ({"ids": [1, 2, 300]}, {}, "vocabulary"),
    "negative_token": ({"ids": [1, -2, 3]}, {}, "negative"),
    "no_tokens": ({"ids": []}, {}, "empty"),
    "full_context": ({"ids": [1] * CONTEXT}, {}, "context"),
    "top_p_zero": ({}, {"top_p": 0.0}, "top_p"),
    "top_p_above_one": ({}, {"top_p": 1.5}, "top_p"),
    "top_k_below": ({}, {"top_k": -2}, "top_k"),
    "temperature_below": ({}, {"temperature": -1.0}, "temperature"),
    "no_new_tokens": ({}, {"max_tokens": 0}, "max_tokens"),
    "empty_stop": ({}, {"stop": [""]}, "stop"),
    "no_samples": ({"num_samples": 0}, {}, "num_samples"),
    "too_many_samples": ({"num_samples": 5000}, {}, "num_samples"),
    "targets_of_the_wrong_length": (
        {"target_prompt_logprobs": np.ones((3, 2), np.int64)},
        {},
        "target_prompt_logprobs",
    ),
    "targets_out_of_vocabulary": (
        {"target_prompt_logprobs": np.full((6, 1), 999)},
        {},
        "target_prompt_logprobs",
    ),
    "last_n_beyond": (
        {"include_prompt_logprobs": True, "prompt_logprobs_last_n": 7},
        {},
        "prompt_logprobs_last_n",
    ),
    "seed_beyond_64_bits": ({}, {"seed": 2**70}, "64 bits"),
    "stop_beyond_64_bits": ({}, {"stop": [2**64]}, "64 bits"),
    "topk_too_wide": ({"topk_prompt_logprobs": 1000}, {}, "topk_prompt_logprobs"),
}


@scenario_of(
    "token_above_vocabulary",
    "negative_token",
    "no_tokens",
    "full_context",
    "top_p_zero",
    "top_p_above_one",
    "top_k_below",
    "temperature_below",
    "no_new_tokens",
    "empty_stop",
    "no_samples",
    "too_many_samples",
    "targets_of_the_wrong_length",
    "targets_out_of_vocabulary",
    "last_n_beyond",
    "seed_beyond_64_bits",
    "stop_beyond_64_bits",
    "topk_too_wide",
)
def mistake(world: World, case: str) -> None:
    """A user error that names what is wrong, and the next request is served."""
    options, params, words = MISTAKES[case]
    options = dict(options)
    sampler = world.service.create_sampling_client(base_model=MODEL)
    ids = options.pop("ids", PROMPT)
    if "target_prompt_logprobs" in options:
        array = options["target_prompt_logprobs"].astype(np.int64)
        options["target_prompt_logprobs"] = types.TensorData.from_numpy(array)
    good = sampler.sample(prompt(PROMPT), 1, types.SamplingParams(max_tokens=3, stop=[]))
    with pytest.raises((*REFUSED, ValueError), match=words) as failure:
        sampler.sample(
            prompt(ids),
            options.pop("num_samples", 1),
            types.SamplingParams(**{"max_tokens": 2, **params}),
            **options,
        ).result(timeout=60)
    assert isinstance(failure.value, ValueError) or is_user_error(failure.value)
    assert len(good.result().sequences[0].tokens) == 3


if __name__ == "__main__":
    run_scenarios()
