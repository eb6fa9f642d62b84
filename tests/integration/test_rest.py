"""Runs, checkpoints, sessions: what training leaves behind is found, shared, fetched, removed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.data import CROSS_ENTROPY, make_data
from tests.support.fixtures import Connect, make_config
from tests.support.loopback import LoopbackServer
from tinkex import RestClient, Runtime, ServiceClient, TrainingClient, types
from tinkex.errors import InvalidPathError, NotFoundError

MODEL = "tiny/model"


@pytest.fixture
def service(connect: Connect) -> ServiceClient:
    return connect()


@pytest.fixture
def training(service: ServiceClient) -> TrainingClient:
    """A run with a state, a sampler and an export."""
    made = service.create_lora_training_client(
        base_model=MODEL, rank=8, user_metadata={"renderer": "plain"}
    )
    made.forward_backward(make_data([3]), CROSS_ENTROPY)
    made.optim_step(types.AdamParams())
    made.save_state("state", user_metadata={"step": "1"}).result(20)
    made.save_weights_for_sampler("sampler", ttl_seconds=7200).result(20)
    made.save_weights_external("export").result(20)
    return made


def _path(training: TrainingClient, name: str) -> str:
    return f"tinker://{training.model_id}/{name}"


def test_a_run_is_found_with_what_was_noted_of_it(
    service: ServiceClient, training: TrainingClient
) -> None:
    rest = service.create_rest_client()

    run = rest.get_training_run(training.model_id).result(20)
    by_path = rest.get_training_run_by_tinker_path(_path(training, "weights/state")).result(20)
    listed = rest.list_training_runs(limit=5).result(20)

    assert run == by_path
    assert (run.base_model, run.lora_rank) == (MODEL, 8)
    assert run.user_metadata == {"renderer": "plain"}
    assert run.last_checkpoint is not None
    assert run.last_checkpoint.checkpoint_id == "weights/state"
    assert [found.training_run_id for found in listed.training_runs] == [training.model_id]
    assert listed.cursor.total_count == 1


def test_checkpoints_are_listed_by_run_and_newest_first(
    service: ServiceClient, training: TrainingClient
) -> None:
    rest = service.create_rest_client()

    of_run = rest.list_checkpoints(training.model_id).result(20).checkpoints
    newest = rest.list_user_checkpoints(limit=2).result(20).checkpoints

    kinds = {found.checkpoint_id: found.checkpoint_type for found in of_run}
    assert kinds == {
        "weights/state": "training",
        "sampler_weights/sampler": "sampler",
        "external_weights/export": "external",
    }
    assert [found.checkpoint_id for found in newest] == [
        "external_weights/export",
        "sampler_weights/sampler",
    ]


def test_a_checkpoint_is_published_kept_and_deleted(
    server: LoopbackServer, service: ServiceClient, training: TrainingClient
) -> None:
    rest = service.create_rest_client()
    path = _path(training, "weights/state")
    saved = server.service.world.checkpoints[path]

    rest.publish_checkpoint_from_tinker_path(path).result(20)
    assert saved.is_public
    rest.unpublish_checkpoint_from_tinker_path(path).result(20)
    assert not saved.is_public
    rest.set_checkpoint_ttl_from_tinker_path(path, 3600).result(20)
    assert saved.ttl_seconds == 3600
    rest.set_checkpoint_ttl_from_tinker_path(path, None).result(20)
    assert saved.ttl_seconds is None
    rest.delete_checkpoint_from_tinker_path(path).result(20)

    assert path not in server.service.world.checkpoints
    (removed,) = server.calls("delete_checkpoint")
    assert removed.target.endswith(f"/training_runs/{training.model_id}/checkpoints/weights/state")
    assert server.calls("set_checkpoint_ttl")[1].body == b'{"ttl_seconds":null}'
    assert server.calls("publish_checkpoint")[0].body == b""


def test_what_is_not_there_is_a_404_after_one_request(
    server: LoopbackServer, service: ServiceClient, training: TrainingClient
) -> None:
    rest = service.create_rest_client()

    with pytest.raises(NotFoundError):
        rest.delete_checkpoint_from_tinker_path(_path(training, "weights/other")).result(20)

    assert server.count("delete_checkpoint") == 1


def test_a_deletion_whose_answer_was_lost_is_sent_again_as_a_retry(
    server: LoopbackServer, service: ServiceClient, training: TrainingClient
) -> None:
    """By that header a server tells it from a second deletion, which would be a 404."""
    rest = service.create_rest_client()
    rest.list_checkpoints(training.model_id).result(20)  # its connection is kept
    server.on("delete_checkpoint").drop_before_answer()

    rest.delete_checkpoint_from_tinker_path(_path(training, "weights/state")).result(20)

    first, again = server.calls("delete_checkpoint")
    assert "x-stainless-retry-count" not in first.headers
    assert again.headers["x-stainless-retry-count"] == "1"
    assert again.headers["x-idempotency-key"] == first.headers["x-idempotency-key"]


@pytest.mark.parametrize(
    "path",
    ["weights/x", "tinker://run/weights", "tinker://run/weights/../x", "tinker://run/other/x"],
)
def test_a_malformed_path_is_refused_before_any_request(
    server: LoopbackServer, service: ServiceClient, path: str
) -> None:
    rest = service.create_rest_client()

    with pytest.raises(InvalidPathError):
        rest.delete_checkpoint_from_tinker_path(path).result(20)

    assert server.requests == []


def test_weights_are_described_and_copied(service: ServiceClient, training: TrainingClient) -> None:
    rest = service.create_rest_client()
    path = _path(training, "weights/state")

    info = rest.get_weights_info_by_tinker_path(path).result(20)
    copied = rest.copy_weights(path, "project-2").result(20)

    assert (info.base_model, info.lora_rank) == (MODEL, 8)
    assert copied == f"{path}-copy"


def test_an_export_is_downloaded_whole(
    server: LoopbackServer, service: ServiceClient, training: TrainingClient, tmp_path: Path
) -> None:
    rest = service.create_rest_client()
    path = _path(training, "external_weights/export")
    seen: list[tuple[str, int, int | None]] = []

    folder = rest.download_checkpoint(
        path, tmp_path / "out", lambda *progress: seen.append(progress)
    ).result(20)

    files = server.service.world.checkpoints[path].files
    assert {f.name: f.read_bytes() for f in folder.iterdir()} == files
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]
    assert ("adapter_model.safetensors", 16384, 16384) in seen
    assert all("x-api-key" not in request.headers for request in server.calls("file"))


def test_sessions_are_listed_and_described(
    server: LoopbackServer, service: ServiceClient, training: TrainingClient
) -> None:
    rest = service.create_rest_client()
    (session_id,) = rest.list_sessions().result(20).sessions

    session = rest.get_session(session_id).result(20)
    rest.assign_session_project(session_id, "project-3").result(20)
    trace = rest.export_session_trace(session_id).result(20)

    assert session.training_run_ids == [training.model_id]
    assert server.service.world.sessions[session_id].project_id == "project-3"
    assert trace.endswith(".pftrace")


def test_capabilities_and_samplers(service: ServiceClient) -> None:
    sampling = service.create_sampling_client(base_model=MODEL)

    models = service.get_server_capabilities().supported_models
    sampler = service.create_rest_client().get_sampler(sampling.sampling_session_id).result(20)

    assert [model.model_name for model in models] == [MODEL]
    assert (sampler.base_model, sampler.model_path) == (MODEL, None)
    assert sampling.get_base_model() == MODEL


def test_a_rest_client_of_its_own_opens_no_session(
    server: LoopbackServer, runtime: Runtime
) -> None:
    rest = RestClient(config=make_config(server), runtime=runtime)

    assert rest.list_training_runs().result(20).training_runs == []
    assert asyncio.run(rest.list_sessions_async()).sessions == []

    assert server.count("create_session") == 0
    assert server.count("client_config") == 1
