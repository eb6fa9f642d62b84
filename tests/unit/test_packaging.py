"""What an installation brings, and what it must not."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tinkex

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~;\s]", each)[0].lower() for each in requirements}


def test_a_plain_install_brings_the_sdk_and_the_command_line_only() -> None:
    assert names(PROJECT["dependencies"]) == {"aiohttp", "click", "jinja2", "msgspec", "tokenizers"}


def test_the_server_and_torch_are_extras() -> None:
    extras = PROJECT["optional-dependencies"]
    assert {"server", "torch", "dev"} <= extras.keys()
    assert "starlette" in names(extras["server"])
    assert "torch" in names(extras["torch"])


def test_the_official_client_is_for_development_only() -> None:
    extras = PROJECT["optional-dependencies"]
    holders = {extra for extra, wanted in extras.items() if "tinker" in names(wanted)}
    assert holders == {"dev"}


def test_the_version_is_said_once() -> None:
    assert "version" not in PROJECT
    assert importlib.metadata.version("tinkex") == tinkex.__version__


def test_every_public_name_can_be_fetched() -> None:
    for name in tinkex.__all__:
        assert getattr(tinkex, name) is not None
    assert sorted(set(tinkex.__all__)) == sorted(tinkex.__all__)
    assert dir(tinkex) == sorted(tinkex.__all__)


def test_what_is_not_there_is_said_plainly() -> None:
    with pytest.raises(AttributeError, match="ServiceKlient"):
        getattr(tinkex, "ServiceKlient")  # noqa: B009 - a type checker would refuse the plain form


def test_the_command_is_installed() -> None:
    scripts = importlib.metadata.entry_points(group="console_scripts")
    assert scripts["tinkex"].value == "tinkex.cli.main:main"


def test_a_release_lists_what_it_depends_on(tmp_path: Path) -> None:
    for name in ("tinkex-1.whl", "tinkex-1.tar.gz"):
        (tmp_path / name).write_text(name)
    bills = []
    for _ in range(2):
        command = [sys.executable, str(ROOT / "tools" / "sbom.py"), str(tmp_path)]
        subprocess.run(command, check=True, capture_output=True)
        (path,) = tmp_path.glob("*.cdx.json")
        bills.append(path.read_bytes())
    assert bills[0] == bills[1], "the same release, the same bytes"
    bill = json.loads(bills[0])
    versions = {each["name"]: each["version"] for each in bill["components"]}
    direct = names(PROJECT["dependencies"]) | names(PROJECT["optional-dependencies"]["server"])
    assert direct - {"tinkex"} <= versions.keys()
    assert {"torch", "markupsafe", "h11"} <= versions.keys(), "and what those need"
    assert not {"tinker", "pytest", "mypy"} & versions.keys()
    assert all(importlib.metadata.version(name) == version for name, version in versions.items())
    known = {each["bom-ref"] for each in [*bill["components"], bill["metadata"]["component"]]}
    assert {each["ref"] for each in bill["dependencies"]} == known
    assert all(set(each["dependsOn"]) <= known for each in bill["dependencies"])
    release = bill["metadata"]["component"]["externalReferences"]
    hashes = {each["url"]: each["hashes"][0]["content"] for each in release}
    assert hashes == {
        each.name: hashlib.sha256(each.read_bytes()).hexdigest()
        for each in tmp_path.glob("tinkex-1.*")
    }


def test_make_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    listed = set(re.findall(r"^([a-z-]+):.*##", makefile, re.MULTILINE))
    (targets,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert listed == set(targets.split())
