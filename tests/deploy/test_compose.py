"""The Compose file is sound, and its services fit each other and the command line."""

from __future__ import annotations

import os
import re
import shlex
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.command_lines import CommandLine
from tests.deploy.programs import DEPLOY, call, run

FOLDER = DEPLOY / "compose"
FILE = FOLDER / "compose.yaml"
OURS = ["leader", "sampler", "standby", "trainer"]
SECRET_MOUNT = "/run/secrets/"
SCHEMA = ["--builtin-schema", "vendor.compose-spec"]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The file, with the variables at their defaults."""
    text = FILE.read_text(encoding="utf-8")
    text = re.sub(r"(?<!\$)\$\{\w+:-([^}]*)\}", r"\1", text)
    assert not re.search(r"(?<!\$)\$\{", text)
    parsed: dict[str, Any] = yaml.safe_load(text)
    return parsed


@pytest.fixture
def services(compose: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = compose["services"]
    return found


def lines(services: dict[str, Any]) -> dict[str, CommandLine]:
    return {name: CommandLine(services[name]["command"], set()) for name in OURS}


def test_the_file_follows_the_specification() -> None:
    run("check-jsonschema", *SCHEMA, FILE)


def test_a_wrong_file_is_refused(tmp_path: Path) -> None:
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(FILE.read_text().replace("stop_grace_period:", "stop_grace:"))
    assert call("check-jsonschema", *SCHEMA, wrong).returncode == 1


def test_command_lines_are_ours(services: dict[str, Any]) -> None:
    assert {name: line.name for name, line in lines(services).items()} == {
        **{"leader": "serve", "standby": "serve"},
        **{"trainer": "worker", "sampler": "worker"},
    }


def test_leader_and_standby_are_alike(services: dict[str, Any]) -> None:
    different = {"volumes"}
    leader, standby = (
        {key: value for key, value in services[name].items() if key not in different}
        for name in ("leader", "standby")
    )
    assert leader == standby


def test_ports_agree(services: dict[str, Any]) -> None:
    found = lines(services)
    port = found["leader"].options["port"]
    workers = found["leader"].options["listen_workers"].rpartition(":")[2]
    assert f":{port}/" in services["leader"]["healthcheck"]["test"][-1]
    (alias,) = services["leader"]["networks"]["default"]["aliases"]
    for name in ("trainer", "sampler"):
        assert found[name].options["join"] == f"{alias}:{workers}"
        assert f":{int(workers):X} 01" in services[name]["healthcheck"]["test"][-2]
    proxy = (FOLDER / "haproxy.cfg").read_text()
    assert re.findall(r"^    server (\w+) (\w+):(\d+)$", proxy, re.M) == [
        (name, name, port) for name in ("leader", "standby")
    ]
    bound = re.findall(r"^    bind :(\d+)$", proxy, re.M)
    assert [each.rpartition(":")[2] for each in services["address"]["ports"]] == bound


def test_all_name_the_same_models(services: dict[str, Any]) -> None:
    named = {line.options["model_texts"][0].partition("=")[0] for line in lines(services).values()}
    assert named == {"base"}


def test_names_of_others_exist(compose: dict[str, Any], services: dict[str, Any]) -> None:
    for service in services.values():
        assert set(service.get("depends_on", [])) <= set(services)
        assert set(service.get("secrets", [])) <= set(compose["secrets"])
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert source.startswith(".") or source in compose["volumes"]
        for config in service.get("configs", []):
            assert (FOLDER / compose["configs"][config["source"]]["file"]).is_file()


def test_secrets_are_files_that_are_mounted(services: dict[str, Any]) -> None:
    for name, service in services.items():
        words = shlex.join(map(str, service.get("command", [])))
        variables = service.get("environment", {})
        used = re.findall(rf"{SECRET_MOUNT}([\w-]+)", f"{words} {variables}")
        assert set(used) == set(service.get("secrets", [])), name
        assert not [each for each in variables if re.search("(PASSWORD|KEY|URL|SECRET)$", each)]


def test_variables_of_files_are_known_to_the_image(services: dict[str, Any]) -> None:
    script = (DEPLOY / "container" / "entrypoint.sh").read_text()
    (known,) = re.findall(r"^for name in (.+); do$", script, re.M)
    for name in OURS:
        given = [each for each in services[name]["environment"] if each.endswith("_FILE")]
        assert {each.removesuffix("_FILE") for each in given} <= set(known.split())


def test_haproxy_takes_its_configuration(tmp_path: Path) -> None:
    config = tmp_path / "haproxy.cfg"
    text = (FOLDER / "haproxy.cfg").read_text()
    config.write_text(text.replace(" leader:", " 127.0.0.1:").replace(" standby:", " 127.0.0.1:"))
    run("haproxy", "-c", "-f", config)


def make_secrets(folder: Path) -> None:
    owner = f"{os.getuid()}:{os.getgid()}"
    run("env", f"TINKEX_SECRETS_OWNER={owner}", FOLDER / "make-secrets.sh", folder)


def test_secrets_are_made_once(compose: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    make_secrets(folder)
    files = sorted(folder.iterdir())
    wanted = sorted(each["file"] for each in compose["secrets"].values())
    assert [f"./secrets/{file.name}" for file in files] == wanted
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o400}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    made = {file.name: file.read_text() for file in files}
    assert made["bootstrap-key"].startswith("tml-")
    assert made["database-password"].strip() in made["database-url"]
    assert len({made[name] for name in ("signing-secret", "worker-token", "operator-token")}) == 3

    (folder / "worker-token").unlink()
    make_secrets(folder)
    again = {file.name: file.read_text() for file in files}
    assert again.pop("worker-token") != made.pop("worker-token")
    assert again == made


def test_secrets_need_a_folder() -> None:
    done = call(str(FOLDER / "make-secrets.sh"))
    assert done.returncode != 0
    assert "give the folder of the secrets" in done.stderr
