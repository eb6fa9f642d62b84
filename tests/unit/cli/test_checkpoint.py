"""`tinkex checkpoint` and its commands."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


FIELDS = ["model_id", "path", "timestamp", "base_model", "model_path", "lora"]


def test_creates_saves_and_writes_metadata(cli, server, model, tmp_path):
    began = datetime.now(UTC).replace(microsecond=0)
    ran = cli("checkpoint", "--base-model", model, "--rank", "4", "--output", "deep/meta.json")
    assert ran.code == 0
    metadata = json.loads((tmp_path / "deep/meta.json").read_text())
    assert list(metadata) == FIELDS
    written = datetime.fromisoformat(metadata["timestamp"])
    assert written.utcoffset() == timedelta(0)
    assert began <= written <= datetime.now(UTC)
    assert ran.out.strip() == metadata["path"]
    assert metadata["path"].startswith(f"tinker://{metadata['model_id']}/sampler_weights/")
    assert metadata["lora"]["rank"] == 4
    assert server.model().lora_config["rank"] == 4
    assert "tinkex run --model-path" in ran.err
    assert names_in(tmp_path / "deep") == ["meta.json"]
    assert (tmp_path / "deep/meta.json").stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_lora_options_reach_the_server(cli, server, model):
    ran = cli(
        *("checkpoint", "--base-model", model, "--seed", "7", "--no-train-mlp"),
        *("--train-attn", "--no-train-unembed", "--name", "mine", "--json"),
    )
    assert server.model().lora_config == {
        "rank": 32,
        "seed": 7,
        "train_mlp": False,
        "train_attn": True,
        "train_unembed": False,
    }
    assert ran.json["path"].endswith("/sampler_weights/mine")


def test_begins_with_saved_weights(cli, server, checkpoints):
    document = cli("checkpoint", "--model-path", checkpoints[0], "--json").json
    assert document["lora"] is None
    assert document["model_path"] == checkpoints[0]
    assert server.count("load_weights") == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "Give --base-model NAME"),
        (["--base-model", "m", "--rank", "0"], 2, "not in the range"),
        (["--model-path", "tinker://r/weights/a", "--rank", "8"], 2, "--rank is fixed"),
        (["--model-path", "tinker://r/weights/a", "--no-train-mlp"], 2, "--train-mlp is fixed"),
        (["--model-path", "elsewhere"], 1, "is not a tinker:// path"),
        (
            ["--base-model", "m", "--no-train-mlp", "--no-train-attn", "--no-train-unembed"],
            1,
            "Nothing would be trained",
        ),
    ],
)
def test_wrong_usage(cli, server, arguments, code, message):
    ran = cli("checkpoint", *arguments)
    assert ran.code == code
    assert message in ran.err
    assert server.count("create_model") == 0


def test_failure_writes_no_metadata(cli, server, tmp_path):
    server.on("create_model").reply(status=400, json_body={"detail": "no such model"})
    assert cli("checkpoint", "--base-model", "m", "--output", "meta.json").code == 1
    assert not (tmp_path / "meta.json").exists()


def test_options_make_the_config_and_stubs_do_the_rest(run, monkeypatch):
    """No network: the command only makes a Config and calls the clients."""
    seen = {}

    class Saved:
        path = "tinker://r/sampler_weights/n"

        def result(self):
            return self

    class Training:
        model_id = "r"

        def save_weights_for_sampler(self, name):
            seen["name"] = name
            return Saved()

    class Service:
        def __init__(self, config):
            seen["config"] = config

        def __enter__(self):
            return self

        def __exit__(self, *error):
            seen["closed"] = True

        def get_server_capabilities(self):
            seen["reached"] = True

        def create_lora_training_client(self, base_model, **lora):
            seen["lora"] = lora
            return Training()

    monkeypatch.setattr("tinkex.client.service.ServiceClient", Service)
    arguments = (
        "--base-model m --rank 2 --base-url http://h:1 --timeout 3 --api-key tml-abc --name n"
    )
    ran = run("checkpoint", *arguments.split(), "--json")
    assert ran.json["model_id"] == "r"
    config = seen["config"]
    assert (config.base_url, config.timeout_s, config.api_key) == ("http://h:1", 3.0, "tml-abc")
    assert (seen["lora"]["rank"], seen["name"], seen["closed"]) == (2, "n", True)


# Looking ---------------------------------------------------------------------------------------


def test_list_shows_the_newest_first(cli, checkpoints):
    lines = cli("checkpoint", "list").out.splitlines()
    assert lines[0].split() == ["PATH", "TYPE", "SIZE", "MADE", "EXPIRES", "ACCESS"]
    assert [line.split()[0] for line in lines[1:]] == checkpoints[::-1]
    assert cli("checkpoint", "ls", "-q").out.splitlines() == checkpoints[::-1]
    document = cli("checkpoint", "list", "--json", "--limit", "1").json
    assert document["run_id"] is None
    assert [each["tinker_path"] for each in document["checkpoints"]] == [checkpoints[2]]
    assert set(document["checkpoints"][0]) == {
        *("checkpoint_id", "checkpoint_type", "time", "tinker_path", "size_bytes", "public"),
        *("user_metadata", "expires_at"),
    }


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        (["--type", "sampler_weights"], 3),
        (["--type", "weights"], 0),
        (["--before", "2026-01-02"], 0),
        (["--before", "2026-01-02T03:04:06"], 3),
        (["--after", "2026-01-02T03:04:05"], 3),
        (["--after", "2026-01-02T03:04:06+00:00"], 0),
        (["--after", "2026-01-01", "--before", "2027-01-01", "--limit", "2"], 2),
    ],
)
def test_list_filters(cli, checkpoints, filters, count):
    assert len(cli("checkpoint", "list", "-q", *filters).out.splitlines()) == count


def test_list_of_one_run_and_of_nothing(cli, checkpoints):
    run_id = checkpoints[0].split("/")[2]
    assert cli("checkpoint", "list", "--run-id", run_id, "-q").out.split() == [checkpoints[0]]
    assert cli("checkpoint", "list", "--run-id", "nope").code == 4
    empty = cli("checkpoint", "list", "--type", "weights")
    assert (empty.code, empty.out, "tinkex train" in empty.err) == (0, "", True)


def test_kinds_are_those_of_the_protocol():
    from tinkex.cli.checkpoint_list import KINDS
    from tinkex.types.checkpoint import CHECKPOINT_TYPES

    assert tuple(CHECKPOINT_TYPES) == KINDS


def test_list_pages_to_the_end(cli, checkpoints, server, monkeypatch):
    monkeypatch.setattr("tinkex.cli.checkpoint_list.PAGE", 2)
    assert len(cli("checkpoint", "list", "-q", "--limit", "0").out.split()) == 3
    assert server.count("list_user_checkpoints") == 2


def test_wrong_time_is_explained(cli):
    ran = cli("checkpoint", "list", "--before", "yesterday")
    assert (ran.code, "is no time such as 2026-01-31" in ran.err) == (2, True)


def test_info_shows_what_it_was_trained_with(cli, checkpoints, model):
    document = cli("checkpoint", "info", checkpoints[0], "--json").json
    assert document["tinker_path"] == checkpoints[0]
    assert (document["base_model"], document["is_lora"], document["lora_rank"]) == (model, True, 32)
    assert f"model    {model}\n" in cli("checkpoint", "show", checkpoints[0]).out
    missing = cli("checkpoint", "info", checkpoints[0] + "x")
    assert missing.code == 4
    assert "tinkex checkpoint list --run-id" in missing.err
    assert cli("checkpoint", "info", "x").code == 1


# Changing --------------------------------------------------------------------------------------


def test_publish_and_unpublish(cli, checkpoints, server):
    ran = cli("checkpoint", "publish", checkpoints[0], checkpoints[1])
    assert (ran.code, ran.out) == (0, "")
    assert f"Published: {checkpoints[0]}" in ran.err
    saved = server.service.world.checkpoints
    assert [saved[path].is_public for path in checkpoints] == [True, True, False]
    ran = cli("checkpoint", "unpublish", checkpoints[0], "--json")
    assert ran.json == {"changed": [checkpoints[0]], "failed": []}
    assert not saved[checkpoints[0]].is_public


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("7200", 7200), ("90m", 5400), ("12h", 43200), ("30d", 2592000), ("1W", 604800), ("9s", 9)],
)
def test_set_ttl(cli, checkpoints, server, text, seconds):
    assert cli("checkpoint", "set-ttl", checkpoints[0], "--ttl", text).code == 0
    assert server.service.world.checkpoints[checkpoints[0]].ttl_seconds == seconds


def test_remove_ttl(cli, checkpoints, server):
    cli("checkpoint", "set-ttl", checkpoints[0], "--ttl", "1h")
    assert cli("checkpoint", "set-ttl", checkpoints[0], "--remove").code == 0
    assert server.service.world.checkpoints[checkpoints[0]].ttl_seconds is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "exactly one"),
        (["--ttl", "1h", "--remove"], "exactly one"),
        (["--ttl", "soon"], "is no duration"),
        (["--ttl", "0"], "is no duration"),
    ],
)
def test_wrong_ttl(cli, arguments, message):
    ran = cli("checkpoint", "set-ttl", "tinker://r/weights/a", *arguments)
    assert (ran.code, message in ran.err) == (2, True)


def test_one_failure_is_printed_in_full_with_its_code(cli, checkpoints):
    ran = cli("checkpoint", "publish", checkpoints[0] + "x")
    assert ran.code == 4
    assert "no such checkpoint" in ran.err


def test_partial_failure_does_the_rest_and_is_no_success(cli, checkpoints, server):
    wrong = [checkpoints[0] + "x", checkpoints[0] + "y"]
    ran = cli("checkpoint", "publish", *wrong, checkpoints[1], "--json")
    assert ran.code == 4
    assert ran.json["changed"] == [checkpoints[1]]
    assert [each["tinker_path"] for each in ran.json["failed"]] == wrong
    assert server.service.world.checkpoints[checkpoints[1]].is_public


def test_failures_of_different_kinds_are_1(cli, checkpoints, server):
    server.on("publish_checkpoint").reply(status=403, json_body={"detail": "no"})
    assert cli("checkpoint", "publish", checkpoints[0], checkpoints[0] + "x").code == 1


# Deleting --------------------------------------------------------------------------------------


def left(server) -> list[str]:
    return list(server.service.world.checkpoints)


def test_delete_by_path(cli, checkpoints, server):
    ran = cli("checkpoint", "rm", checkpoints[0], "--yes", "--json")
    assert ran.json == {"deleted_count": 1, "deleted": [checkpoints[0]], "failed": []}
    assert left(server) == checkpoints[1:]


def test_delete_by_filter(cli, checkpoints, server):
    run_id = checkpoints[1].split("/")[2]
    ran = cli("checkpoint", "delete", "--run-id", run_id, "-y")
    assert (ran.code, "Deleted 1 of 1." in ran.err) == (0, True)
    assert checkpoints[1] not in left(server)
    nothing = cli("checkpoint", "delete", "--before", "2020-01-01", "-y")
    assert (nothing.code, "nothing to delete" in nothing.err) == (0, True)
    assert len(left(server)) == 2


@pytest.mark.parametrize("is_json", [False, True])
def test_dry_run_deletes_nothing(cli, checkpoints, server, is_json):
    arguments = ["--after", "2020-01-01", "--dry-run", *(["--json"] if is_json else [])]
    ran = cli("checkpoint", "delete", *arguments)
    shown = ran.json["would_delete"] if is_json else ran.out.split()
    assert sorted(shown) == sorted(checkpoints)
    assert len(left(server)) == 3


def test_without_a_terminal_there_is_no_question_and_nothing_is_deleted(cli, checkpoints, server):
    ran = cli("checkpoint", "delete", checkpoints[0])
    assert ran.code == 2
    assert "add --yes" in ran.err
    assert len(left(server)) == 3


@pytest.mark.parametrize(("answer", "code", "count"), [("y", 0, 2), ("n", 1, 3), ("", 1, 3)])
def test_with_a_terminal_there_is_a_question(
    cli, checkpoints, server, monkeypatch, answer, code, count
):
    monkeypatch.setattr("tinkex.cli.output.is_interactive", lambda: True)
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda prompt: answer)
    ran = cli("checkpoint", "delete", checkpoints[0])
    assert ran.code == code
    assert len(left(server)) == count


def test_many_are_not_all_listed_before_the_question(cli, checkpoints, monkeypatch):
    monkeypatch.setattr("tinkex.cli.checkpoint_delete.SHOWN", 1)
    ran = cli("checkpoint", "delete", "--after", "2020-01-01")
    assert "… and 2 more" in ran.err


@pytest.mark.parametrize("arguments", [[], ["tinker://r/weights/a", "--run-id", "r"]])
def test_delete_wants_paths_or_filters(cli, arguments):
    assert cli("checkpoint", "delete", *arguments).code == 2


def test_one_malformed_path_keeps_all_from_being_deleted(cli, checkpoints, server):
    assert cli("checkpoint", "delete", checkpoints[0], "nonsense", "-y").code == 1
    assert len(left(server)) == 3


def test_partly_failed_delete_is_no_success(cli, checkpoints, server):
    ran = cli("checkpoint", "delete", *checkpoints, checkpoints[0] + "x", "-y", "--json")
    assert ran.code == 4
    assert ran.json["deleted_count"] == 3
    assert [each["tinker_path"] for each in ran.json["failed"]] == [checkpoints[0] + "x"]


# Downloading -----------------------------------------------------------------------------------


def test_download_exports_fetches_and_tidies_up(cli, checkpoints, server, tmp_path):
    ran = cli("checkpoint", "download", checkpoints[0], "-o", "adapter", "--json")
    assert ran.code == 0
    assert ran.json["checkpoint_path"] == checkpoints[0]
    assert ran.json["destination"] == str(tmp_path / "adapter")
    assert ran.json["files"] == ["adapter_config.json", "adapter_model.safetensors"]
    sizes = [path.stat().st_size for path in (tmp_path / "adapter").iterdir()]
    assert ran.json["file_size_bytes"] == sum(sizes)
    assert not [path for path in left(server) if "external_weights" in path]


def test_download_has_a_folder_by_default(cli, checkpoints, tmp_path):
    ran = cli("checkpoint", "download", checkpoints[0])
    run_id = checkpoints[0].split("/")[2].replace(":", "-")
    assert ran.out.strip() == f"{run_id}_sampler_weights_c0"
    assert (tmp_path / ran.out.strip()).is_dir()
    assert "Downloaded 2 files" in ran.err


def test_existing_folder_is_replaced_only_if_forced(cli, checkpoints, tmp_path):
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter/old").touch()
    ran = cli("checkpoint", "download", checkpoints[0], "-o", "adapter")
    assert (ran.code, "--force" in ran.err) == (1, True)
    assert (tmp_path / "adapter/old").exists()
    assert cli("checkpoint", "download", checkpoints[0], "-o", "adapter", "--force").code == 0
    assert not (tmp_path / "adapter/old").exists()
    (tmp_path / "file").touch()
    assert cli("checkpoint", "download", checkpoints[0], "-o", "file", "--force").code == 1


def test_broken_download_leaves_the_old_folder(cli, checkpoints, server, tmp_path):
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter/old").touch()
    server.on("file").reply(status=200, headers={"x-content-sha256": "0" * 64}, body=b"x").always()
    ran = cli("checkpoint", "download", checkpoints[0], "-o", "adapter", "--force")
    assert ran.code == 6
    assert "is damaged" in ran.err
    assert names_in(tmp_path / "adapter") == ["old"]
    assert [path.name for path in tmp_path.iterdir() if "part" in path.name] == []
    assert not [path for path in left(server) if "external_weights" in path]


def test_file_names_cannot_leave_the_folder(cli, checkpoints, server, tmp_path):
    urls = {"../evil": f"{server.url}/files/1/x"}
    server.on("external_weights_urls").reply(
        json_body={"urls": urls, "expires": "2036-01-02T03:04:05Z"}
    )
    ran = cli("checkpoint", "download", checkpoints[0], "-o", "adapter")
    assert ran.code == 6
    assert not (tmp_path / "evil").exists()
    assert not (tmp_path / "adapter").exists()


def test_export_that_cannot_be_deleted_is_only_a_warning(cli, checkpoints, server):
    server.on("delete_checkpoint").reply(status=403, json_body={"detail": "no"})
    ran = cli("checkpoint", "download", checkpoints[0])
    assert (ran.code, "expires by itself" in ran.err) == (0, True)
