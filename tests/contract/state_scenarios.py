"""Checkpoints, exports, copies and tenants through the official client.

python -m tests.contract.state_scenarios [part of a scenario's name ...]
"""

from __future__ import annotations

import io
import tarfile
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import numpy as np
import pyrage
import pytest
import tinker
import torch
from safetensors.torch import load_file
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
from tests.engine.work import sft_datum

ADAM = types.AdamParams(learning_rate=0.01, weight_decay=0.1)


def _steps(training: tinker.TrainingClient, count: int = 3, first: int = 0) -> list[float]:
    outputs = []
    for step in range(first, first + count):
        outputs.append(training.forward_backward([datum(8, step)], "cross_entropy"))
        training.optim_step(ADAM)
    return [output.result().metrics["loss:sum"] for output in outputs]


def _weights(world: World, training: tinker.TrainingClient, name: str) -> dict[str, torch.Tensor]:
    return load_file(world.exported(training, name) / "adapter_model.safetensors")


def _is_same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


# --- state


@scenario
def with_its_optimizer_a_run_goes_on_bit_for_bit(world: World) -> None:
    training = world.trained()
    _steps(training)
    path = training.save_state("middle").result().path
    went_on = _steps(training, first=3)
    end = _weights(world, training, "end")
    again = world.service.create_training_client_from_state_with_optimizer(path)
    assert _steps(again, first=3) == went_on
    assert _is_same(_weights(world, again, "end"), end)
    other = world.service.create_lora_training_client(MODEL, rank=4, seed=99)
    _steps(other, 2, first=9)
    other.load_state_with_optimizer(path).result()
    assert _steps(other, first=3) == went_on
    assert _is_same(_weights(world, other, "end"), end)


@scenario
def without_its_optimizer_it_starts_the_moments_anew(world: World) -> None:
    training = world.trained()
    _steps(training)
    path = training.save_state("middle").result().path
    start = world.exported(training, "middle")
    went_on = _steps(training, first=3)
    fresh = world.service.create_training_client_from_state(path)
    anew = _steps(fresh, first=3)
    assert anew[0] == went_on[0], "the weights are the same"
    assert anew[2] != went_on[2], "the steps are not"
    training.load_state(path).result()
    assert _steps(training, first=3) == anew
    losses = _oracle_steps(world, start)
    world.agree("losses after a start without moments", anew, losses, 1e-3)


def _oracle_steps(world: World, folder: Path) -> list[float]:
    oracle = world.oracle(adapter=folder)
    optimizer = torch.optim.AdamW(
        oracle.parameters(), lr=0.01, betas=(0.9, 0.95), eps=1e-12, weight_decay=0.1
    )
    losses = []
    for step in range(3, 6):
        loss = oracle.loss("cross_entropy", [sft_datum(8, step)])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


@scenario
def pending_gradients_are_not_part_of_a_state(world: World) -> None:
    training = world.trained()
    training.forward_backward([datum(8)], "cross_entropy")
    path = training.save_state("pending").result().path
    loaded = world.service.create_training_client_from_state_with_optimizer(path)
    assert (loaded.optim_step(ADAM).result().metrics or {})["grad_norm"] == 0
    training.forward_backward([datum(9)], "cross_entropy")
    training.load_state(path)
    assert (training.optim_step(ADAM).result().metrics or {})["grad_norm"] == 0


@scenario
def a_saved_state_brings_its_rank_and_switches(world: World) -> None:
    training = world.trained(rank=3, train_attn=False, train_unembed=False)
    path = training.save_state("mlp").result().path
    info = world.rest().get_weights_info_by_tinker_path(path).result()
    assert (info.base_model, info.is_lora, info.lora_rank) == (MODEL, True, 3)
    assert (info.train_mlp, info.train_attn, info.train_unembed) == (True, False, False)
    loaded = world.service.create_training_client_from_state(path, user_metadata={"from": "mlp"})
    assert loaded.get_info().lora_rank == 3
    assert _is_same(_weights(world, loaded, "a"), _weights(world, training, "a"))
    run = world.rest().get_training_run(loaded.model_id).result()
    assert run.user_metadata == {"from": "mlp"}
    assert run.lora_rank == 3


@scenario
def a_name_is_taken_once_unless_it_may_be_overwritten(world: World) -> None:
    training = world.trained()
    path = training.save_state("name", user_metadata={"step": "1"}).result().path
    _steps(training, 1)
    with pytest.raises(tinker.RequestFailedError, match="exists already") as failure:
        training.save_state("name").result()
    assert is_user_error(failure.value)
    assert (
        training.save_state("name", overwrite=True, user_metadata={"step": "2"}).result().path
        == path
    )
    listed = world.rest().list_checkpoints(training.model_id).result().checkpoints
    assert [each.user_metadata for each in listed] == [{"step": "2"}]
    loaded = world.service.create_training_client_from_state_with_optimizer(path)
    assert _steps(loaded, 1, first=1) == _steps(training, 1, first=1)
    training.save_weights_for_sampler("name").result()
    with pytest.raises(tinker.RequestFailedError, match="exists already"):
        training.save_weights_for_sampler("name").result()


@scenario
def a_sampler_outlives_what_happens_to_its_checkpoint(world: World) -> None:
    """Overwritten or deleted: what samples from the old one goes on, or is told so at once."""
    training = world.trained()
    path = training.save_state("used").result().path
    sampler = world.service.create_sampling_client(model_path=path)
    before = scored_prompt(sampler)
    _steps(training, 1)
    training.save_state("used", overwrite=True).result()
    assert scored_prompt(sampler) == before
    fresh = world.service.create_sampling_client(model_path=path)
    assert scored_prompt(fresh) != before
    world.rest().delete_checkpoint_from_tinker_path(path).result()
    with pytest.raises(tinker.NotFoundError):
        world.service.create_sampling_client(model_path=path)
    with pytest.raises(REFUSED) as failure:
        world.service.create_training_client_from_state(path)
    assert is_user_error(failure.value)


@scenario
def checkpoints_expire_are_published_and_deleted(world: World) -> None:
    training, rest = world.trained(), world.rest()
    path = training.save_state("kept", ttl_seconds=7200).result().path
    sampler = training.save_weights_for_sampler("also", ttl_seconds=3600).result().path

    def listed() -> dict[str, types.Checkpoint]:
        found = rest.list_checkpoints(training.model_id).result().checkpoints
        return {each.tinker_path: each for each in found}

    now = datetime.now(UTC)
    for one, seconds in ((path, 7200), (sampler, 3600)):
        gap = listed()[one].expires_at - now - timedelta(seconds=seconds)
        assert abs(gap.total_seconds()) < 60
    rest.set_checkpoint_ttl_from_tinker_path(path, 36000).result()
    assert listed()[path].expires_at > now + timedelta(seconds=30000)
    rest.set_checkpoint_ttl_from_tinker_path(path, None).result()
    assert listed()[path].expires_at is None
    for seconds in (0, 60, 3599, 10**10):
        with pytest.raises(REFUSED, match="ttl_seconds") as failure:
            rest.set_checkpoint_ttl_from_tinker_path(path, seconds).result()
        assert is_user_error(failure.value)
        with pytest.raises(REFUSED, match="ttl_seconds"):
            training.save_state("short", ttl_seconds=seconds).result()
    for _ in range(2):
        rest.publish_checkpoint_from_tinker_path(path).result()
    assert listed()[path].public
    assert not listed()[sampler].public
    rest.unpublish_checkpoint_from_tinker_path(path).result()
    assert not listed()[path].public
    assert listed()[path].size_bytes > 1000
    assert listed()[path].checkpoint_type == "training"
    rest.delete_checkpoint(training.model_id, "weights/kept").result()
    assert list(listed()) == [sampler]
    for again in (path, "tinker://unknown:train:0/weights/x"):
        with pytest.raises(tinker.NotFoundError):
            rest.delete_checkpoint_from_tinker_path(again).result()
    assert _steps(training, 1), "the run goes on without its checkpoint"


@scenario
def names_that_are_none(world: World) -> None:
    training = world.trained()
    for name in ("no good", "../up", "a/b", ".hidden", "", "x" * 200):
        for save in (training.save_state, training.save_weights_external):
            with pytest.raises(REFUSED) as failure:
                save(name).result()
            assert is_user_error(failure.value)
    assert training.save_state("a-good.name_1").result().path.endswith("/weights/a-good.name_1")


# --- exports


@scenario
def exports_need_no_key_but_a_signature(world: World) -> None:
    training = world.trained()
    saved = training.save_weights_external("plain", ttl_seconds=7200).result()
    answer = world.rest().get_external_weights_urls(saved.path).result()
    assert {"adapter_config.json", "adapter_model.safetensors"} <= answer.urls.keys()
    assert answer.expires > datetime.now(UTC) + timedelta(minutes=10)
    size = 0
    for url in answer.urls.values():
        with urllib.request.urlopen(url) as file:
            size += len(file.read())
    (listed,) = world.rest().list_checkpoints(training.model_id).result().checkpoints
    assert (listed.checkpoint_type, listed.size_bytes) == ("external", size)
    url = answer.urls["adapter_model.safetensors"]
    later = url.replace("expires=", "expires=9")
    other = url.replace("adapter_model.safetensors", "adapter_config.json")
    for forged in (later, other, url.partition("?")[0], url[:-1]):
        with pytest.raises(urllib.error.HTTPError) as failure:
            urllib.request.urlopen(forged)
        assert failure.value.code in {401, 403, 404}
    with pytest.raises(REFUSED, match="export"):
        world.service.create_sampling_client(model_path=saved.path)
    world.rest().delete_checkpoint_from_tinker_path(saved.path).result()
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(url)


@scenario
def encrypted_exports_open_for_their_recipients_alone(world: World) -> None:
    training = world.trained()
    plain = world.exported(training, "plain")
    identities = [pyrage.x25519.Identity.generate() for _ in range(3)]
    recipients = [str(each.to_public()) for each in identities[:2]]
    saved = training.save_weights_external("locked", age_encryption_recipients=recipients).result()
    locked = world.download(saved.path)
    names = sorted(path.name for path in plain.iterdir())
    assert sorted(path.name for path in locked.iterdir()) == [f"{name}.age" for name in names]
    for name in names:
        secret = (locked / f"{name}.age").read_bytes()
        for identity in identities[:2]:
            assert pyrage.decrypt(secret, [identity]) == (plain / name).read_bytes()
        with pytest.raises(pyrage.DecryptError):
            pyrage.decrypt(secret, identities[2:])
        (locked / name).write_bytes(pyrage.decrypt(secret, identities[:1]))
    sampler = training.save_weights_and_get_sampling_client()
    oracle = world.oracle(adapter=locked)
    with torch.no_grad():
        table = oracle.all_logprobs(np.array(IDS))[:-1]
    expected = table.gather(1, torch.tensor(IDS[1:])[:, None]).squeeze(1)
    world.agree("decrypted export in peft and sampler", scored_prompt(sampler), expected, 1e-4)


@scenario
def recipients_that_are_none_are_refused(world: World) -> None:
    training = world.trained()
    good = str(pyrage.x25519.Identity.generate().to_public())
    for recipients in (["age1nonsense"], [good, ""], [good] * 11):
        with pytest.raises((*REFUSED, ValueError)) as failure:
            training.save_weights_external("bad", age_encryption_recipients=recipients).result()
        assert isinstance(failure.value, ValueError) or is_user_error(failure.value)
    assert world.rest().list_checkpoints(training.model_id).result().checkpoints == []
    assert training.save_weights_external("bad").result().path, "the name is still free"


@scenario
def an_archive_of_a_state_is_a_peft_folder_too(world: World) -> None:
    training = world.trained()
    path = training.save_state("state").result().path
    url = f"{world.base_url}/api/v1/training_runs/{training.model_id}/checkpoints/weights/state"
    headers = {"X-API-Key": world.api_key}
    link = httpx.get(f"{url}/archive", headers=headers).headers["location"]
    folder = world.data_dir.parent / "archive"
    with tarfile.open(fileobj=io.BytesIO(httpx.get(link).content)) as archive:
        archive.extractall(folder, filter="data")
    sampler = world.service.create_sampling_client(model_path=path)
    with torch.no_grad():
        table = world.oracle(adapter=folder).all_logprobs(np.array(IDS))[:-1]
    expected = table.gather(1, torch.tensor(IDS[1:])[:, None]).squeeze(1)
    world.agree("archived state in peft and sampler", scored_prompt(sampler), expected, 1e-4)


# --- copies and other tenants


@scenario
def copies_live_on_their_own(world: World) -> None:
    training, rest = world.trained(), world.rest()
    _steps(training, 2)
    state = training.save_state("source").result().path
    sampler = training.save_weights_for_sampler("source").result().path
    scores = scored_prompt(world.service.create_sampling_client(model_path=sampler))
    copied_state = rest.copy_weights(state, "archive", ttl_seconds=7200).result()
    copied_sampler = world.connect(project_id="archive").copy_weights(sampler).result()
    assert "/weights/" in copied_state
    assert "/sampler_weights/" in copied_sampler
    for path in (state, sampler):
        rest.delete_checkpoint_from_tinker_path(path).result()
    again = world.service.create_training_client_from_state_with_optimizer(copied_state)
    assert _steps(again, first=2) == _steps(training, first=2)
    assert scored_prompt(world.service.create_sampling_client(model_path=copied_sampler)) == scores
    mine = {each.tinker_path: each for each in rest.list_user_checkpoints().result().checkpoints}
    assert mine[copied_state].expires_at is not None
    assert mine[copied_sampler].expires_at is None
    runs = rest.list_training_runs(project_id="archive").result().training_runs
    assert {each.training_run_id for each in runs} >= {
        types.ParsedCheckpointTinkerPath.from_tinker_path(path).training_run_id
        for path in (copied_state, copied_sampler)
    }


@scenario
def weights_of_another_account(world: World) -> None:
    key = world.new_tenant()
    training = world.trained()
    path = training.save_state("mine").result().path
    sampler = training.save_weights_for_sampler("mine").result().path
    theirs, rest = world.connect(key), world.rest(key)
    scores = scored_prompt(world.service.create_sampling_client(model_path=sampler))

    def refused() -> None:
        for attempt in (
            lambda: theirs.create_training_client_from_state(path),
            lambda: theirs.create_sampling_client(model_path=sampler),
            lambda: rest.copy_weights(path, "p").result(),
            lambda: rest.get_weights_info_by_tinker_path(path).result(),
        ):
            with pytest.raises(tinker.NotFoundError):
                attempt()

    refused()
    borrowed = theirs.create_training_client_from_state(path, weights_access_token=world.api_key)
    assert scored_prompt(borrowed.save_weights_and_get_sampling_client()) == scores
    copy = rest.copy_weights(sampler, "p", weights_access_token=world.api_key).result()
    assert scored_prompt(theirs.create_sampling_client(model_path=copy)) == scores
    with pytest.raises(tinker.AuthenticationError):
        rest.copy_weights(path, "p", weights_access_token="tml-wrong").result()
    for each in (path, sampler):
        world.rest().publish_checkpoint_from_tinker_path(each).result()
    public = theirs.create_sampling_client(model_path=sampler)
    assert scored_prompt(public) == scores
    assert theirs.create_training_client_from_state(path).get_info().lora_rank == 4
    with pytest.raises(tinker.NotFoundError):
        rest.delete_checkpoint_from_tinker_path(path).result()
    for each in (path, sampler):
        world.rest().unpublish_checkpoint_from_tinker_path(each).result()
    refused()


@scenario
def other_tenants_ids_do_not_exist(world: World) -> None:
    training = world.trained()
    path = training.save_state("secret").result().path
    export = training.save_weights_external("secret").result().path
    sampler = training.save_weights_and_get_sampling_client()
    session_id = training.model_id.partition(":")[0]
    sampler_id = world.rest().get_session(session_id).result().sampler_ids[0]
    key = world.new_tenant()
    rest = world.rest(key)
    attempts = [
        lambda: rest.get_training_run(training.model_id).result(),
        lambda: rest.get_training_run_by_tinker_path(path).result(),
        lambda: rest.get_training_run(training.model_id, access_scope="accessible").result(),
        lambda: rest.list_checkpoints(training.model_id).result(),
        lambda: rest.get_external_weights_urls(export).result(),
        lambda: rest.delete_checkpoint_from_tinker_path(path).result(),
        lambda: rest.publish_checkpoint_from_tinker_path(path).result(),
        lambda: rest.set_checkpoint_ttl_from_tinker_path(path, None).result(),
        lambda: rest.get_session(session_id).result(),
        lambda: rest.assign_session_project(session_id, "p").result(),
        lambda: rest.get_sampler(sampler_id).result(),
        lambda: world.connect(key).create_training_client_from_state_with_optimizer(path),
    ]
    for attempt in attempts:
        with pytest.raises(tinker.NotFoundError):
            attempt()
    stolen = tinker.SamplingClient.from_sampler_handle(sampler.get_sampler_handle(), api_key=key)
    with pytest.raises(tinker.NotFoundError):
        stolen.sample(prompt(IDS), 1, types.SamplingParams(max_tokens=1)).result(timeout=60)
    theirs = world.connect(key).create_lora_training_client(MODEL, rank=4)
    with pytest.raises(tinker.RequestFailedError, match="no checkpoint"):
        theirs.load_state(path).result()
    assert rest.list_user_checkpoints().result().checkpoints == []
    runs = rest.list_training_runs().result().training_runs
    assert [run.training_run_id for run in runs] == [theirs.model_id]
    assert session_id not in rest.list_sessions().result().sessions
    found = rest.search_sessions(types.SessionSearchRequest(session_id=session_id)).result()
    assert found.sessions == []


if __name__ == "__main__":
    run_scenarios()
