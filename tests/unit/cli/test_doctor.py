"""`tinkex doctor`: what it checks, and the next step for each failure."""

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from tinkex.cli import doctor
from tinkex.cli.installing import install_command


def statuses(ran) -> dict[str, str]:
    return {each["name"]: each["status"] for each in ran.json["checks"]}


def test_all_is_well(cli, server, model, monkeypatch):
    monkeypatch.setattr("tinkex.server.models.engine_factory.kernels_trouble", lambda: None)
    server.service.models = [model]
    ran = cli("doctor", "--json")
    assert ran.code == 0
    assert ran.json["is_ok"] is True
    assert set(statuses(ran).values()) == {"ok"}
    assert list(statuses(ran)) == [
        *("python", "tinkex", "torch", "kernels", "disk", "settings"),
        *("server", "key", "models", "tokenizer"),
    ]
    result = cli("doctor")
    assert result.code == 0
    assert result.err == "All is well.\n"
    assert "tokenizer" in result.out


def test_no_key(run):
    ran = run("doctor", "--json")
    assert ran.code == 1
    assert ran.json["checks"][-1]["name"] == "key"
    assert "tinkex auth login" in ran.json["checks"][-1]["next_step"]


def test_no_server_there(run, monkeypatch):
    monkeypatch.setenv("TINKER_API_KEY", "tml-a")
    monkeypatch.setenv("TINKER_BASE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("TINKEX_RETRY_BUDGET_S", "0.01")
    ran = run("doctor")
    assert ran.code == 1
    assert "FAILED   server" in ran.out
    assert "-> Start one with 'tinkex serve'" in ran.out
    assert "1 of 7 checks failed." in ran.err


@pytest.mark.parametrize(
    ("status", "name", "step"),
    [(401, "key", "tinkex keys create"), (404, "server", "Check TINKER_BASE_URL")],
)
def test_server_that_refuses(cli, server, status, name, step):
    server.on("client_config").reply(status=status, json_body={"detail": "no"}).always()
    ran = cli("doctor", "--json")
    assert ran.code == 1
    failed = [each for each in ran.json["checks"] if each["status"] == "failed"]
    assert [each["name"] for each in failed] == [name]
    assert step in failed[0]["next_step"]


def test_server_without_models(cli, server):
    server.service.models = []
    ran = cli("doctor", "--json")
    assert statuses(ran)["models"] == "failed"


def test_many_models_are_not_all_named(cli, server, model):
    server.service.models = [model, *(f"m{number}" for number in range(8))]
    detail = next(
        each for each in cli("doctor", "--json").json["checks"] if each["name"] == "models"
    )
    assert detail["detail"].endswith("and 4 more")


def test_tokenizer_that_is_not_here(cli, server):
    server.service.models = ["./nowhere"]
    ran = cli("doctor", "--json")
    assert statuses(ran)["tokenizer"] == "failed"
    assert "Failed to load tokenizer" in ran.json["checks"][-1]["detail"]


def test_unreadable_settings(run, tmp_path):
    (tmp_path / "tinkex.toml").write_text("[client]\ntimeout_s = 'soon'\n")
    ran = run("doctor", "--json")
    assert statuses(ran)["settings"] == "failed"


def test_old_python_missing_torch_and_full_disk():
    assert doctor.check_python((3, 10, 1)).status == "failed"

    def missing(name):
        raise PackageNotFoundError(name)

    torch = doctor.check_torch(missing)
    assert (torch.status, torch.next_step) == ("skipped", install_command("server"))
    assert doctor.check_disk(Path(), 5).status == "warning"


def test_kernels_that_cannot_be_built(monkeypatch):
    monkeypatch.setattr(
        "tinkex.server.models.engine_factory.kernels_trouble", lambda: ("no C compiler", "Get one.")
    )
    found = doctor.check_kernels()
    assert found.status == "warning"
    assert "no C compiler" in found.detail
    assert found.next_step == "Get one."


@pytest.mark.parametrize(
    ("config", "status", "said"),
    [
        (
            '{"model_type": "gpt2"}',
            "warning",
            "through transformers, more slowly: model_type='gpt2'",
        ),
        ("{", "warning", "cannot be read"),
        ('{"model_type": "llama"}', "warning", "cannot be read: KeyError"),
        (None, "warning", "holds no config.json"),
    ],
)
def test_how_a_model_would_run(config, status, said, tmp_path):
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    found = doctor.check_model(tmp_path)
    assert (found.name, found.status) == ("model", status)
    assert said in found.detail


def test_a_model_of_the_servers_own_code(tmp_path):
    pytest.importorskip("torch")
    from tinkex.engine.convert.tiny_model import make_tiny_model

    assert doctor.check_model(make_tiny_model(tmp_path / "tiny")).status == "ok"


def test_missing_package(monkeypatch):
    monkeypatch.setattr("tinkex.cli.version.dependencies", lambda: [("click", "8"), ("gone", None)])
    assert "gone is missing" in doctor.check_package().detail
