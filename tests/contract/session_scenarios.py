"""Sessions, what the client is told to use, and what there is not, through the official client.

python -m tests.contract.session_scenarios [part of a scenario's name ...]
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import tinker
import torch
from tinker import types

from tests.contract.world import (
    IDS,
    MODEL,
    REFUSED,
    World,
    datum,
    is_user_error,
    prompt,
    run_scenarios,
    scenario,
    scored_prompt,
)

ADAM = types.AdamParams(learning_rate=0.01, weight_decay=0.1)


def _searched(rest: tinker.RestClient, **query: Any) -> list[str]:
    found = rest.search_sessions(types.SessionSearchRequest(**query)).result()
    return [each.display_name or "" for each in found.sessions]


@scenario
def sessions_are_found_by_what_was_said_of_them(world: World) -> None:
    key = world.new_tenant()
    rest = world.rest(key)
    services = {}
    for name, project in (("Red Fox", "forest"), ("red panda", "zoo"), ("Blue Jay", "forest")):
        service = world.connect(
            key,
            display_name=name,
            project_id=project,
            user_metadata={"colour": name.split()[0].lower(), "run": "1"},
        )
        service.create_sampling_client(base_model=MODEL)
        services[name] = service
    assert _searched(rest) == ["Blue Jay", "red panda", "Red Fox"]
    assert _searched(rest, display_name="RED") == ["red panda", "Red Fox"]
    assert _searched(rest, display_name="fox red") == ["Red Fox"]
    assert _searched(rest, display_name="100%_") == []
    assert _searched(rest, project_ids=["forest"]) == ["Blue Jay", "Red Fox"]
    assert _searched(rest, user_metadata={"colour": "red"}) == ["red panda", "Red Fox"]
    assert _searched(rest, user_metadata={"colour": "red", "run": "2"}) == []
    session_id = rest.list_sessions().result().sessions[0]
    assert _searched(rest, session_id=session_id) == ["Blue Jay"]
    assert _searched(rest, session_id=session_id, display_name="fox") == ["Blue Jay", "Red Fox"]
    me = rest.whoami().result().user_urn
    assert len(_searched(rest, owner=types.UserSearchOwner(owner_urns=[me]))) == 3
    assert _searched(rest, owner=types.UserSearchOwner(owner_urns=["tml:user:other"])) == []
    services["Red Fox"].close("errored", "it fell over").result()
    active = types.ActiveSessionStatusQuery()
    errored = types.ClientFinishedSessionStatusQuery(reasons=["errored"])
    success = types.ClientFinishedSessionStatusQuery(reasons=["success"])
    assert _searched(rest, statuses=[active]) == ["Blue Jay", "red panda"]
    assert _searched(rest, statuses=[errored]) == ["Red Fox"]
    assert _searched(rest, statuses=[success]) == []
    assert len(_searched(rest, statuses=[active, errored])) == 3
    assert _searched(rest, statuses=[types.CancelledSessionStatusQuery()]) == []


@scenario
def pages_of_sessions_meet_without_gap_or_repeat(world: World) -> None:
    key = world.new_tenant()
    rest = world.rest(key)
    for number in range(5):
        world.connect(key, display_name=f"s{number}").create_sampling_client(base_model=MODEL)
    seen: list[str] = []
    cursor = None
    for _ in range(5):
        page = rest.search_sessions(types.SessionSearchRequest(limit=2, cursor=cursor)).result()
        seen += [each.display_name or "" for each in page.sessions]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == ["s4", "s3", "s2", "s1", "s0"]
    listed = [rest.list_sessions(limit=2, offset=n).result().sessions for n in (0, 2, 4)]
    assert sum(len(each) for each in listed) == len({one for each in listed for one in each}) == 5


@scenario
def a_session_tells_what_belongs_to_it(world: World) -> None:
    key = world.new_tenant()
    rest = world.rest(key)
    with world.connect(key, display_name="mine", user_metadata={"a": "b"}) as service:
        training = service.create_lora_training_client(MODEL, rank=4, user_metadata={"r": "x"})
        training.save_state("one").result()
        training.save_weights_for_sampler("two").result()
        service.create_sampling_client(base_model=MODEL)
        session_id = training.model_id.partition(":")[0]
        session = rest.get_session(session_id).result()
        assert session.training_run_ids == [training.model_id]
        assert len(session.sampler_ids) == 1
        assert session.user_metadata == {"a": "b"}
        rest.assign_session_project(session_id, "moved").result()
        runs = rest.list_training_runs(project_id="moved").result()
        assert [run.training_run_id for run in runs.training_runs] == [training.model_id]
        assert runs.cursor.total_count == 1
        (found,) = rest.search_sessions(types.SessionSearchRequest()).result().sessions
        assert found.checkpoints_count == 2
        assert found.checkpoint_storage_bytes is None or found.checkpoint_storage_bytes > 1000
        assert found.project_id == "moved"
        assert found.status is not None
        assert found.status.type == "active"
    (found,) = rest.search_sessions(types.SessionSearchRequest()).result().sessions
    assert found.status is not None
    assert (found.status.type, found.status.reason.type) == ("client_finished", "success")
    run = rest.get_training_run(training.model_id).result()
    assert run.user_metadata == {"r": "x"}
    assert run.last_checkpoint.checkpoint_id == "weights/one"
    assert run.last_sampler_checkpoint.checkpoint_id == "sampler_weights/two"
    assert not run.corrupted


# --- what the client is told to use


@scenario
def what_the_server_can_the_client_uses(world: World) -> None:
    service = world.connect()
    training = service.create_lora_training_client(MODEL, rank=4, seed=1)
    training.forward_backward([datum(9)], "cross_entropy").result()
    assert "forward_backward zstd" in world.sent
    assert "forward_backward plain" not in world.sent
    assert {"token", "config", "dynamic_config"} <= world.sent
    sampler = training.save_weights_and_get_sampling_client()
    scored_prompt(sampler)
    assert "retrieve_futures" in world.sent
    clone = tinker.SamplingClient.from_sampler_handle(
        sampler.get_sampler_handle(), api_key=world.api_key
    )
    assert scored_prompt(clone) == scored_prompt(sampler)
    assert "join_sampling_session" in world.sent
    long = types.SamplingParams(max_tokens=480, stop=[])
    future = sampler.sample(prompt(IDS), 64, long)
    deadline = time.monotonic() + 30
    while "cancel_future" not in world.sent and time.monotonic() < deadline:
        time.sleep(0.2)
        if not future.cancel():
            future = sampler.sample(prompt(IDS), 64, long)
    assert "cancel_future" in world.sent
    assert scored_prompt(sampler), "sampling goes on"


# --- what there is not


@scenario
def what_has_no_meaning_here_says_so_at_once(world: World) -> None:
    admin = tinker.AdminClient(base_url=world.base_url, api_key=world.api_key)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    session_id = world.trained().model_id.partition(":")[0]
    attempts = [
        lambda: admin.get_billing_usage(start, start + timedelta(hours=1)).result(),
        lambda: admin.get_audit_log().result(),
        lambda: world.rest().export_session_trace(session_id).result(),
    ]
    for attempt in attempts:
        began = time.monotonic()
        with pytest.raises(tinker.APIStatusError, match="This server") as failure:
            attempt()
        assert failure.value.status_code in {404, 501}
        assert time.monotonic() - began < 20


@scenario
def what_is_kept_is_told(world: World) -> None:
    admin = tinker.AdminClient(base_url=world.base_url, api_key=world.api_key)
    world.trained().save_state("kept").result()
    kept = admin.get_current_checkpoint_storage_usage().result().data
    assert sum(each.checkpoint_count for each in kept) >= 1, "scenarios run side by side"
    assert all(each.size_bytes > 0 for each in kept)


@scenario
def dimuon_trains_saves_and_resumes(world: World) -> None:
    config = types.DimuonOptimizerConfig()
    training = world.service.create_lora_training_client(MODEL, rank=4, seed=1, optimizer=config)
    assert training.get_info().optimizer_config.type == "dimuon"

    def step(client: tinker.TrainingClient) -> tuple[float, float]:
        forward = client.forward_backward([datum(5)], "cross_entropy")
        update = client.optim_step(types.DimuonParams(learning_rate=0.02)).result()
        return forward.result().metrics["loss:sum"], (update.metrics or {})["grad_norm"]

    step(training)
    path = training.save_state("dimuon").result().path
    info = world.rest().get_weights_info_by_tinker_path(path).result()
    assert info.optimizer_config.type == "dimuon"
    resumed = world.service.create_training_client_from_state_with_optimizer(path)
    assert [step(resumed) for _ in range(3)] == [step(training) for _ in range(3)]
    adam = world.service.create_training_client_from_state(
        path, optimizer=types.AdamOptimizerConfig()
    )
    assert adam.get_info().optimizer_config.type == "adamw"
    adam.forward_backward([datum(5)], "cross_entropy")
    assert (adam.optim_step(ADAM).result().metrics or {})["grad_norm"] > 0
    with pytest.raises(REFUSED, match="adamw") as failure:
        adam.load_state_with_optimizer(path).result()
    assert is_user_error(failure.value)


@scenario
def parameters_of_another_optimizer_are_refused(world: World) -> None:
    training = world.trained()
    training.forward_backward([datum(5)], "cross_entropy")
    with pytest.raises(REFUSED, match="adamw") as failure:
        training.optim_step(types.DimuonParams(learning_rate=0.1)).result()
    assert is_user_error(failure.value)
    assert (training.optim_step(ADAM).result().metrics or {})["grad_norm"] > 0


@scenario
def models_that_read_text_refuse_images(world: World) -> None:
    image = types.ImageChunk(data=b"\x89PNG", format="png", expected_tokens=3)
    text = types.EncodedTextChunk(tokens=[1, 2])
    mixed = types.ModelInput(chunks=[text, image])
    training = world.trained()
    sampler = world.service.create_sampling_client(base_model=MODEL)
    example = types.Datum(
        model_input=mixed,
        loss_fn_inputs={"target_tokens": [1] * 5, "weights": [1.0] * 5},
    )
    for attempt in (
        lambda: training.forward_backward([example], "cross_entropy").result(),
        lambda: sampler.sample(mixed, 1, types.SamplingParams(max_tokens=1)).result(timeout=60),
    ):
        with pytest.raises(REFUSED, match="text only") as failure:
            attempt()
        assert is_user_error(failure.value)


@scenario
def a_traced_loss_runs_on_the_client(world: World) -> None:
    """The server does not take uploads, and the client then runs such a loss itself."""

    def likelihood(logprobs: torch.Tensor, weights: torch.Tensor) -> Any:
        loss = -(logprobs * weights).sum()
        return loss, {"custom/likelihood:sum": loss}

    service = world.connect()
    training = service.create_lora_training_client(MODEL, rank=4, seed=1)
    handle = service.create_custom_loss(likelihood, {"logprobs": 1, "weights": 1}).result()
    ours = training.forward_backward_custom([datum(9)], handle).result().metrics
    plain = training.forward([datum(9)], "cross_entropy").result().metrics
    world.agree("traced loss", ours["custom/likelihood:sum"], plain["loss:sum"], 1e-4)


if __name__ == "__main__":
    run_scenarios()
