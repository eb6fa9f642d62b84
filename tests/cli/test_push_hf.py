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
