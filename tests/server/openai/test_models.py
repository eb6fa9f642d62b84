"""What `model` may name, and what is listed: base models, paths, runs, names of checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest

import tinkex
from tests.server.openai.conftest import ASK_JSON, JSON, MODEL, PLAIN, Trained


def said(client: openai.OpenAI, model: str) -> Any:
    asked: Any = {"messages": ASK_JSON, "max_tokens": 20, "temperature": 0}
    return client.chat.completions.create(model=model, **asked).choices[0].message.content


def test_a_checkpoint_by_all_its_names(client: openai.OpenAI, trained: Trained) -> None:
    for name in (trained.path, trained.name, trained.run_id):
        assert said(client, name) == JSON, name
        shown: Any = client.models.retrieve(name)
        assert (shown.id, shown.root, shown.parent) == (name, trained.path, MODEL)
    assert said(client, MODEL) != JSON


def test_models_are_listed(client: openai.OpenAI, trained: Trained) -> None:
    listed = {each.id: each for each in client.models.list()}
    assert {MODEL, PLAIN, trained.path} <= listed.keys()
    assert listed[MODEL].owned_by == "tinkex"
    assert client.models.retrieve(PLAIN).id == PLAIN


def test_another_tenant_sees_none_of_it(
    make_client: Callable[..., openai.OpenAI],
    trained: Trained,
    service: tinkex.ServiceClient,
) -> None:
    other = make_client(new_tenant=True)
    assert [each.id for each in other.models.list()] == [MODEL, PLAIN]
    unknown = trained.path.replace("learnt", "unknown")
    for name in (trained.path, trained.name, trained.run_id, unknown, "nothing"):
        with pytest.raises(openai.NotFoundError) as refused:
            said(other, name)
        assert refused.value.code == "model_not_found"
        assert refused.value.param == "model"
    rest = service.create_rest_client()
    rest.publish_checkpoint_from_tinker_path(trained.path).result(60)
    try:
        assert said(other, trained.path) == JSON
        assert other.models.retrieve(trained.path).owned_by == "public"
    finally:
        rest.unpublish_checkpoint_from_tinker_path(trained.path).result(60)
    with pytest.raises(openai.NotFoundError):
        said(other, trained.path)


def test_the_name_of_a_run_means_its_newest_sampler(
    client: openai.OpenAI, service: tinkex.ServiceClient
) -> None:
    rest = service.create_rest_client()
    run = service.create_lora_training_client(MODEL, rank=2)
    rest.update_run(run.model_id, name="my run").result(60)
    with pytest.raises(openai.NotFoundError):
        said(client, "my run")
    run.save_weights_for_sampler("older").result(60)
    state = run.save_state("resumable").result(60).path
    newer = run.save_weights_for_sampler("newer").result(60).path
    assert client.models.retrieve("my run").model_extra["root"] == newer
    resumed = service.create_training_client_from_state(state)
    newest = resumed.save_weights_for_sampler("newest").result(60).path
    assert client.models.retrieve("my run").model_extra["root"] == newest
    other = service.create_lora_training_client(MODEL, rank=2)
    rest.update_run(other.model_id, name="my run").result(60)
    path = other.save_weights_for_sampler("of-other").result(60).path
    with pytest.raises(openai.BadRequestError) as refused:
        said(client, "my run")
    assert refused.value.code == "ambiguous_model"
    assert path in refused.value.message
    assert newest in refused.value.message


def test_names_that_mean_several_checkpoints_or_none_to_sample_from(
    client: openai.OpenAI, service: tinkex.ServiceClient
) -> None:
    runs = [service.create_lora_training_client(MODEL, rank=2) for _ in range(2)]
    paths = [str(run.save_weights_for_sampler("twice").result(60).path) for run in runs]
    training = runs[0]
    with pytest.raises(openai.BadRequestError) as refused:
        said(client, "twice")
    assert refused.value.code == "ambiguous_model"
    assert all(path in refused.value.message for path in paths)
    state = training.save_state("only-state").result(60).path
    assert said(client, "only-state") == said(client, state)
    export = training.save_weights_external("export").result(60).path
    for name, code in ((export, "wrong_kind"), ("tinker://x/y", "invalid_path")):
        with pytest.raises(openai.BadRequestError) as refused:
            said(client, name)
        assert (refused.value.code, refused.value.param) == (code, "model")


def test_a_deleted_checkpoint_is_gone_at_once(
    client: openai.OpenAI, service: tinkex.ServiceClient
) -> None:
    training = service.create_lora_training_client(MODEL, rank=2)
    path = str(training.save_weights_for_sampler("short-lived").result(60).path)
    assert said(client, path)
    service.create_rest_client().delete_checkpoint_from_tinker_path(path).result(60)
    with pytest.raises(openai.NotFoundError):
        said(client, path)
