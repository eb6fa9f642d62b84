"""What an installation brings, and what it must not."""

from __future__ import annotations

import importlib.metadata
import re
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
