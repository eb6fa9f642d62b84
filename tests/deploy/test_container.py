"""The image: its Dockerfile, and its entrypoint run for real."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.deploy.programs import DEPLOY, ROOT, run
from tinkex.version import __version__

DOCKERFILE = DEPLOY / "container" / "Dockerfile"
ENTRYPOINT = DEPLOY / "container" / "entrypoint.sh"
SCRIPTS = sorted(DEPLOY.rglob("*.sh"))


def test_hadolint_finds_no_fault() -> None:
    run("hadolint", DOCKERFILE)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_shellcheck_finds_no_fault(script: Path) -> None:
    assert os.access(script, os.X_OK) or script == ENTRYPOINT  # the image makes that one executable
    run("shellcheck", script)


def test_yaml_is_tidy() -> None:
    templates = DEPLOY / "helm" / "tinkex" / "templates"
    files = [file for file in sorted(DEPLOY.rglob("*.yaml")) if templates not in file.parents]
    assert len(files) >= 7
    run(
        "yamllint", "--strict", "-d", "{extends: relaxed, rules: {line-length: {max: 120}}}", *files
    )


def test_what_is_copied_is_sent_to_the_builder() -> None:
    sent = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.M)
    copied = re.findall(r"^COPY (?!--from)(?:--chmod=\S+ )?(.+) \S+$", DOCKERFILE.read_text(), re.M)
    files = [file for line in copied for file in line.split()]
    assert sorted(files) == sorted(sent)
    assert all((ROOT / file).exists() for file in files)


def test_extras_and_versions_are_those_of_the_project() -> None:
    text = DOCKERFILE.read_text()
    (extras,) = re.findall(r"^ARG EXTRAS=(.+)$", text, re.M)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    (torch,) = re.findall(r"^ARG TORCH=(.+)$", text, re.M)
    assert f"TORCH ?= {torch}\n" in (ROOT / "Makefile").read_text()
    tagged = re.compile(r"\btinkex:(\d[\w.]*\d)")
    files = [file for file in DEPLOY.rglob("*") if file.is_file()]
    tags = {tag for file in files for tag in tagged.findall(file.read_text(encoding="utf-8"))}
    assert tags == {__version__}
    chart = (DEPLOY / "helm" / "tinkex" / "Chart.yaml").read_text()
    assert f"appVersion: {__version__}\n" in chart


@pytest.fixture
def fake_tinkex(tmp_path: Path) -> Path:
    """A folder with a `tinkex` that prints its process, arguments and environment."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "tinkex"
    program.write_text("#!/bin/sh\necho $$\nprintf '%s\\n' \"$@\"\nenv\n")
    program.chmod(0o755)
    return folder


def enter(folder: Path, *words: str, **variables: str) -> tuple[int, int, list[str], str]:
    """Runs the entrypoint: its exit code and process, what it prints, and its messages."""
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.Popen(
        ["/bin/sh", str(ENTRYPOINT), *words],
        env={"PATH": path, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, err = process.communicate(timeout=60)
    return process.returncode, process.pid, out.splitlines(), err


def test_the_entrypoint_becomes_tinkex(fake_tinkex: Path) -> None:
    code, pid, out, _ = enter(fake_tinkex, "serve", "--model=a b", TINKEX_PORT="1")
    assert code == 0
    assert out[:3] == [str(pid), "serve", "--model=a b"]
    assert "TINKEX_PORT=1" in out


def test_files_become_variables(fake_tinkex: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("postgresql://a:$b `c` @d\n")
    _, _, out, _ = enter(fake_tinkex, "serve", TINKEX_DATABASE_URL_FILE=str(secret))
    assert "TINKEX_DATABASE_URL=postgresql://a:$b `c` @d" in out
    assert not [line for line in out if line.startswith("TINKEX_DATABASE_URL_FILE")]


def test_a_file_that_is_not_there_is_named(fake_tinkex: Path, tmp_path: Path) -> None:
    missing = str(tmp_path / "nothing")
    code, _, out, err = enter(fake_tinkex, "serve", AWS_SECRET_ACCESS_KEY_FILE=missing)
    assert (code, out) == (2, [])
    assert f"AWS_SECRET_ACCESS_KEY_FILE={missing} cannot be read" in err
