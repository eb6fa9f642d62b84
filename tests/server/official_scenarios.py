"""The official client, unchanged, through everything it can do with a training server.

Run by `test_official_client.py` in a process of its own: the official client leaves threads and
sockets open until its process ends. Each scenario is a function of a `World` that asserts.

    python -m tests.server.official_scenarios <base_url> <api_key>
"""

from __future__ import annotations

import json
import math
import os
import sys
import traceback
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import tinker
from tinker import types

from tests.server.driving import MODEL


class World:
    """A server to talk to, and clients of it."""

    def __init__(self, base_url: str, api_key: str) -> None:
        self.base_url = base_url
        self.api_key = api_key

    def connect(self) -> tinker.ServiceClient:
        """A client with a session of its own."""
        return tinker.ServiceClient(base_url=self.base_url, api_key=self.api_key)

    def rest(self) -> tinker.RestClient:
        """A client for lists and checkpoints."""
        return tinker.RestClient(base_url=self.base_url, api_key=self.api_key)


PROMPT = types.ModelInput.from_ints([1, 2, 3])


def datum(length: int = 5, start: int = 1) -> types.Datum:
    """One training example."""
    ids = [start + i % 100 for i in range(length + 1)]
    return types.Datum(
        model_input=types.ModelInput.from_ints(ids[:-1]),
        loss_fn_inputs={"target_tokens": ids[1:], "weights": [1.0] * length},
    )


SCENARIOS: dict[str, Callable[[World], None]] = {}


def scenario(run: Callable[[World], None]) -> Callable[[World], None]:
    """Registers a scenario under its function's name."""
    SCENARIOS[run.__name__] = run
    return run


@scenario
def the_whole_loop(world: World) -> None:
    service = world.connect()
    training = service.create_lora_training_client(MODEL, rank=8, user_metadata={"renderer": "x"})
    losses = []
    for _ in range(3):
        forward = training.forward_backward([datum() for _ in range(4)], "cross_entropy")
        step = training.optim_step(types.AdamParams(learning_rate=1e-3))
        assert len(forward.result().loss_fn_outputs) == 4
        assert forward.result().loss_fn_outputs[0]["logprobs"].shape == [5]
        assert step.result().metrics is not None
        assert "grad_norm" in step.result().metrics
        losses.append(forward.result().metrics["loss:sum"])
    assert len(set(losses)) == 3, "every step changed the weights"
    sampler = training.save_weights_and_get_sampling_client()
    answer = sampler.sample(PROMPT, 2, types.SamplingParams(max_tokens=8, seed=3)).result()
    assert len(answer.sequences) == 2
    assert len(answer.sequences[0].tokens) == len(answer.sequences[0].logprobs or []) > 0
    scores = sampler.compute_logprobs(PROMPT).result()
    assert scores[0] is None
    assert all(score is not None and score <= 0 for score in scores[1:])


@scenario
def capabilities_and_info(world: World) -> None:
    service = world.connect()
    names = [m.model_name for m in service.get_server_capabilities().supported_models]
    assert names == [MODEL, "org/named"]
    training = service.create_lora_training_client("org/named:some-suffix", rank=4)
    info = training.get_info()
    assert info.lora_rank == 4
    assert info.model_data.model_name == "org/named:some-suffix"


@scenario
def a_batch_of_several_chunks_is_computed_in_order(world: World) -> None:
    training = world.connect().create_lora_training_client(MODEL, rank=8)
    data = [datum(length=3 + n % 4, start=1 + n % 50) for n in range(1100)]
    together = training.forward(data, "cross_entropy").result()
    alone = training.forward(data[1050:1052], "cross_entropy").result()
    assert len(together.loss_fn_outputs) == 1100
    assert [out["logprobs"].data for out in together.loss_fn_outputs[1050:1052]] == [
        out["logprobs"].data for out in alone.loss_fn_outputs
    ]


@scenario
def custom_loss_runs_on_the_client(world: World) -> None:
    training = world.connect().create_lora_training_client(MODEL, rank=8)

    def loss(data: list[types.Datum], logprobs: list[object]) -> tuple[object, dict[str, float]]:
        total = sum(each.sum() for each in logprobs)  # type: ignore[attr-defined]
        return -total, {"mine": 1.0}

    result = training.forward_backward_custom([datum()], loss).result()
    assert result.metrics["mine"] == 1.0
    assert "loss:sum" in result.metrics


@scenario
def a_saved_state_resumes_exactly(world: World) -> None:
    service = world.connect()
    training = service.create_lora_training_client(MODEL, rank=8, seed=1)
    training.forward_backward([datum()], "cross_entropy").result()
    training.optim_step(types.AdamParams()).result()
    path = training.save_state("step-1").result().path
    again = service.create_training_client_from_state_with_optimizer(path)
    expected = training.forward([datum()], "cross_entropy").result()
    assert again.forward([datum()], "cross_entropy").result().metrics == expected.metrics
    for client in (training, again):
        client.forward_backward([datum()], "cross_entropy").result()
    steps = [client.optim_step(types.AdamParams()).result() for client in (training, again)]
    assert steps[0].metrics == steps[1].metrics


@scenario
def saving_twice_under_one_name_is_an_error_unless_it_may_overwrite(world: World) -> None:
    training = world.connect().create_lora_training_client(MODEL, rank=8)
    path = training.save_state("same").result().path
    with pytest.raises(tinker.RequestFailedError, match="exists already"):
        training.save_state("same").result()
    assert training.save_state("same", overwrite=True).result().path == path


@scenario
def ephemeral_samplers_do_not_change(world: World) -> None:
    training = world.connect().create_lora_training_client(MODEL, rank=8)
    first = training.save_weights_and_get_sampling_client()
    before = first.compute_logprobs(PROMPT).result()
    training.forward_backward([datum()], "cross_entropy").result()
    training.optim_step(types.AdamParams(learning_rate=0.1)).result()
    second = training.save_weights_and_get_sampling_client()
    assert first.compute_logprobs(PROMPT).result() == before
    assert second.compute_logprobs(PROMPT).result() != before


@scenario
def named_samplers_and_the_base_model(world: World) -> None:
    service = world.connect()
    training = service.create_lora_training_client(MODEL, rank=8)
    training.forward_backward([datum()], "cross_entropy").result()
    training.optim_step(types.AdamParams(learning_rate=0.1)).result()
    path = training.save_weights_for_sampler("named").result().path
    named = service.create_sampling_client(model_path=path)
    ephemeral = training.save_weights_and_get_sampling_client()
    base = service.create_sampling_client(base_model=MODEL)
    scores = [each.compute_logprobs(PROMPT).result() for each in (named, ephemeral, base)]
    assert scores[0] == scores[1] != scores[2]


@scenario
def everything_that_can_be_asked_of_a_prompt(world: World) -> None:
    sampler = world.connect().create_sampling_client(base_model=MODEL)
    answer = sampler.sample(
        PROMPT,
        1,
        types.SamplingParams(max_tokens=3, stop=[]),
        include_prompt_logprobs=True,
        topk_prompt_logprobs=2,
        topk_sample_logprobs=3,
        target_prompt_logprobs=types.TensorData(data=[5, -1, 7, 8], dtype="int64", shape=[2, 2]),
        prompt_alt_tokens_k=2,
    ).result()
    assert len(answer.prompt_logprobs or []) == 3
    assert [None if row is None else len(row) for row in answer.topk_prompt_logprobs] == [
        None,
        2,
        2,
    ]
    assert len(answer.sequences[0].topk_logprobs[0]) == 3
    assert answer.target_prompt_logprobs.shape == [2, 2]
    assert answer.target_prompt_logprobs.tolist()[0][1] == 0.0
    assert answer.prompt_alt_tokens.tokens.shape == [2, 2]


@scenario
def hundreds_of_samples_at_once(world: World) -> None:
    sampler = world.connect().create_sampling_client(base_model=MODEL)
    params = types.SamplingParams(max_tokens=2, seed=1)
    answers = [sampler.sample(PROMPT, 1, params) for _ in range(300)]
    tokens = {tuple(answer.result().sequences[0].tokens) for answer in answers}
    assert len(tokens) == 1, "the same seed gives the same tokens"


@scenario
def a_wrong_request_fails_alone(world: World) -> None:
    training = world.connect().create_lora_training_client(MODEL, rank=8)
    good = training.forward_backward([datum()], "cross_entropy")
    bad = training.forward_backward([datum(start=300)], "cross_entropy")
    unknown = training.forward_backward([datum()], "stable_reinforce")
    after = training.optim_step(types.AdamParams())
    assert math.isfinite(good.result().metrics["loss:sum"])
    with pytest.raises(tinker.RequestFailedError, match="vocabulary") as failure:
        bad.result()
    assert str(failure.value.category) in {"user", "RequestErrorCategory.User"}
    with pytest.raises(tinker.RequestFailedError, match="stable_reinforce"):
        unknown.result()
    assert after.result().metrics is not None


@scenario
def a_refused_request_does_not_block_the_next(world: World) -> None:
    training = world.connect().create_lora_training_client(MODEL, rank=8)
    with pytest.raises(tinker.UnprocessableEntityError, match="not a checkpoint name"):
        training.save_state("no good name").result()
    assert training.forward_backward([datum()], "cross_entropy").result().metrics


@scenario
def runs_and_checkpoints_over_rest(world: World) -> None:
    service = world.connect()
    training = service.create_lora_training_client(MODEL, rank=8, user_metadata={"renderer": "x"})
    training.forward_backward([datum(length=6)], "cross_entropy").result()
    path = training.save_state("one", ttl_seconds=7200).result().path
    training.save_weights_for_sampler("two").result()
    rest = world.rest()
    run = rest.get_training_run(training.model_id).result()
    assert run.user_metadata == {"renderer": "x"}
    assert run.last_checkpoint.tinker_path == path
    runs = rest.list_training_runs().result().training_runs
    assert run.training_run_id in [each.training_run_id for each in runs]
    listed = rest.list_checkpoints(training.model_id).result().checkpoints
    assert [each.checkpoint_id for each in listed] == ["weights/one", "sampler_weights/two"]
    assert listed[0].expires_at is not None
    rest.set_checkpoint_ttl_from_tinker_path(path, None).result()
    rest.publish_checkpoint_from_tinker_path(path).result()
    listed = rest.list_checkpoints(training.model_id).result().checkpoints
    assert listed[0].expires_at is None
    assert listed[0].public
    rest.delete_checkpoint_from_tinker_path(path).result()
    assert [
        c.checkpoint_id for c in rest.list_checkpoints(training.model_id).result().checkpoints
    ] == ["sampler_weights/two"]
    with pytest.raises(tinker.NotFoundError):
        rest.delete_checkpoint_from_tinker_path(path).result()


@scenario
def exports_are_downloaded_without_a_key(world: World) -> None:
    training = world.connect().create_lora_training_client(MODEL, rank=8)
    saved = training.save_weights_external("export").result()
    rest = world.rest()
    urls = rest.get_external_weights_urls(saved.path).result().urls
    content = {}
    for name, url in urls.items():
        with urllib.request.urlopen(url) as answer:
            content[name] = answer.read()
    assert content
    assert all(content.values())
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(url.replace("signature=", "signature=0"))


@scenario
def who_am_i_and_sessions(world: World) -> None:
    rest = world.rest()
    before = set(rest.list_sessions().result().sessions)
    service = world.connect()
    service.create_sampling_client(base_model=MODEL)
    assert rest.whoami().result().user_urn.startswith("tml:user:")
    new = set(rest.list_sessions().result().sessions) - before
    assert 1 in [len(rest.get_session(each).result().sampler_ids) for each in new]


@scenario
def what_has_no_meaning_here_says_so_at_once(world: World) -> None:
    admin = tinker.AdminClient(base_url=world.base_url, api_key=world.api_key)
    with pytest.raises(tinker.NotFoundError, match="no audit"):
        admin.get_audit_log().result()


@scenario
def what_is_kept_can_be_asked_for(world: World) -> None:
    admin = tinker.AdminClient(base_url=world.base_url, api_key=world.api_key)
    rest = world.rest()
    for _ in range(100):  # other scenarios save and delete meanwhile
        before = rest.list_user_checkpoints(limit=1000).result().checkpoints
        kept = admin.get_current_checkpoint_storage_usage().result()
        listed = rest.list_user_checkpoints(limit=1000).result().checkpoints
        if before == listed:
            break
    assert sum(item.checkpoint_count for item in kept.data) == len(listed)
    assert sum(item.size_bytes for item in kept.data) == sum(c.size_bytes or 0 for c in listed)


@scenario
def a_wrong_key_is_refused(world: World) -> None:
    service = tinker.ServiceClient(base_url=world.base_url, api_key="tml-wrong")
    with pytest.raises(tinker.AuthenticationError):
        service.get_server_capabilities()


def main(base_url: str, api_key: str) -> dict[str, str | None]:
    """For each scenario None, or the traceback of its failure."""
    world = World(base_url, api_key)

    def attempt(run: Callable[[World], None]) -> str | None:
        try:
            run(world)
        except BaseException:
            return traceback.format_exc()
        return None

    with ThreadPoolExecutor(4) as pool:
        return dict(zip(SCENARIOS, pool.map(attempt, SCENARIOS.values()), strict=True))


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])), flush=True)
    os._exit(0)  # the client's own threads sometimes abort an orderly end
