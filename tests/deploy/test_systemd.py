"""The units of systemd are valid, run our command lines, and protect the machine."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.deploy.command_lines import CommandLine
from tests.deploy.programs import DEPLOY, call

UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
each_unit = pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)


@each_unit
def test_systemd_finds_no_fault(unit: Path) -> None:
    done = call("systemd-analyze", "verify", unit)
    found = done.stderr.splitlines()
    # Warnings are about this unit alone; the program is installed on the machine that runs it.
    about_it = [line for line in found if unit.stem.rstrip("@") in line]
    assert [line for line in about_it if "is not executable" not in line] == []


def test_a_wrong_unit_is_found(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.service"
    wrong.write_text(UNITS[0].read_text().replace("KillMode=mixed", "KillMode=some"))
    assert "wrong.service" in call("systemd-analyze", "verify", wrong).stderr


@each_unit
def test_command_lines_are_ours(unit: Path) -> None:
    text = unit.read_text()
    (command,) = re.findall(r"^ExecStart=(.+)$", text, re.M)
    program, *words = shlex.split(command)
    assert program == "/opt/tinkex/bin/tinkex"
    (comment,) = re.findall(r"^# (.+)\nEnvironmentFile=", text, re.M)
    line = CommandLine(words, set(re.findall(r"TINKEX_\w+", comment)))
    assert line.name == ("worker" if "worker" in unit.name else "serve")
    assert bool(line.options.get("is_standby")) == ("standby" in unit.name)


@each_unit
def test_data_is_where_the_unit_may_write(unit: Path) -> None:
    text = unit.read_text()
    (folder,) = re.findall(r"^StateDirectory=(.+)$", text, re.M)
    assert f"--data-dir=/var/lib/{folder}" in text
    for line in ("ProtectSystem=strict", "NoNewPrivileges=yes", "UMask=0077", "Restart=always"):
        assert f"\n{line}\n" in text
