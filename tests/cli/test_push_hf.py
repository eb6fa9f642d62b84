"""`tinkex checkpoint push-hf` against a stand-in of the hub."""

import json

import pytest

from tests.cli.hub import Hub

pytest.importorskip("huggingface_hub")


@pytest.fixture
def hub():
    with Hub() as running:
        yield running


@pytest.fixture
def push(shell, hub, model, tmp_path):
    """Pushes a checkpoint to the repository me/adapter."""
    # The stand-in has the hub's older way to upload large files.
    shell.environ["HF_HUB_DISABLE_XET"] = "1"
    (tmp_path / "token").write_text("hf_secret\n")
    path = shell("checkpoint", "--base-model", model).stdout.strip()
    options = ("--repo", "me/adapter", "--hub-url", hub.url, "--hf-token-file", "token")
    return lambda *arguments: shell("checkpoint", "push-hf", path, *options, *arguments)


def test_adapter_and_card_are_uploaded(push, hub, model):
    ran = push("--json")
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    assert list(document) == ["checkpoint_path", "repo_id", "revision", "public", "url"]
    assert document["url"].startswith(f"{hub.url}/me/adapter/commit/")
    files = hub.files["me/adapter", "main"]
    assert set(files) == {"README.md", "adapter_config.json", "adapter_model.safetensors"}
    assert files["adapter_model.safetensors"] == bytes(range(256)) * 64
    assert f'base_model: "{model}"' in files["README.md"].decode()
    assert hub.repos["me/adapter"]["visibility"] == "private"
    assert "Bearer hf_secret" in hub.tokens
    assert "hf_secret" not in ran.stderr


def test_options(push, hub):
    ran = push(
        *("--public", "--revision", "dev", "--commit-message", "My words", "--no-model-card"),
        *("--ignore-pattern", "*.json"),
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip().startswith(hub.url)
    assert set(hub.files["me/adapter", "dev"]) == {"adapter_model.safetensors"}
    assert hub.repos["me/adapter"]["visibility"] == "public"
    assert hub.messages == ["My words"]


def test_without_a_repository_it_is_named_after_the_run(shell, hub, model):
    shell.environ["HF_HUB_DISABLE_XET"] = "1"
    (shell.folder / "token").write_text("hf_secret\n")
    path = shell("checkpoint", "--base-model", model, "--name", "end").stdout.strip()
    options = ("--hub-url", hub.url, "--hf-token-file", "token", "--json")
    ran = shell("checkpoint", "push-hf", path, *options)
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    run = path.split("/")[2].replace(":", "-")
    assert document["repo_id"] == f"me/tinkex-{model.rpartition('/')[2]}-{run}"
    assert document["revision"] == path.split("/", 3)[3].replace("/", "-")
    pushed = hub.files[document["repo_id"], document["revision"]]
    assert document["repo_id"] in pushed["README.md"].decode()
    assert "adapter_config.json" in pushed
    ran = shell("checkpoint", "push-hf", path, *options, "--revision", "main")
    assert json.loads(ran.stdout)["revision"] == "main"


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("Qwen/Qwen3-8B", "tinkex-Qwen3-8B-9f-train-0"),
        ("/models/a b (c)..d/", "tinkex-a-b-c-d-9f-train-0"),
        ("x" * 200, f"tinkex-{'x' * 78}-9f-train-0"),
    ],
)
def test_names_that_the_hub_takes(base, expected):
    from huggingface_hub.utils import validate_repo_id

    from tinkex.client.hub_upload import _names_of
    from tinkex.wire.paths import TinkerPath

    path = TinkerPath.parse("tinker://9f:train:0/weights/step-1")
    name, revision = _names_of(path, base, "me")
    validate_repo_id(name)
    assert (name, revision) == (f"me/{expected}", "weights-step-1")


@pytest.mark.parametrize(
    ("status", "code", "step"), [(401, 3, "hf auth login"), (400, 1, "--repo")]
)
def test_refusals_of_the_hub(push, hub, status, code, step):
    hub.refuse = status
    ran = push()
    assert ran.returncode == code
    assert "The hub refused" in ran.stderr
    assert step in ran.stderr
    assert "Traceback" not in ran.stderr


def test_hub_that_is_not_there(push):
    ran = push("--hub-url", "http://127.0.0.1:1")
    assert ran.returncode == 7
    assert "The hub could not be reached" in ran.stderr


def test_a_name_needs_a_login(shell, hub, model):
    path = shell("checkpoint", "--base-model", model).stdout.strip()
    ran = shell("checkpoint", "push-hf", path, "--hub-url", hub.url)
    assert ran.returncode == 1, ran.stderr
    assert "hf auth login" in ran.stderr
    assert not hub.repos


def test_wrong_repository_name(push):
    ran = push("--repo", "not a name")
    assert ran.returncode == 2
    assert "no repository such as" in ran.stderr


def test_checkpoint_that_is_no_adapter(push, shell, server):
    urls = {"other.txt": f"{server.url}/files/none/x"}
    server.on("external_weights_urls").reply(
        json_body={"urls": urls, "expires": "2036-01-02T03:04:05Z"}
    )
    server.on("file").reply(body=b"x")
    ran = push()
    assert ran.returncode == 1
    assert "is no PEFT adapter; it holds: other.txt" in ran.stderr
