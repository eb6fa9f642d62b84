"""requirements.lock: what `make install` takes, file by file."""

from __future__ import annotations

import re
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent.parent
# PyTorch is installed before the lock, and with it what only PyTorch needs.
ONLY_WITH_TORCH = {"mpmath", "networkx", "sympy"}
# What no platform that the tests run on installs, so that no version of it was tested.
FOR_OTHER_PLATFORMS = {"colorama", "httpx2-jsfetch"}


def locked() -> dict[str, str]:
    """Each entry of the lock, by the package's name."""
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8").replace("\\\n", " ")
    entries = [line for line in text.splitlines() if line.strip()]
    return {canonicalize_name(each.split("==")[0]): each for each in entries}


def pinned() -> dict[str, str]:
    """The version of each package in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(each.name): str(each.specifier) for each in pins}


def test_the_lock_holds_the_versions_that_were_tested() -> None:
    versions = {
        name: "==" + re.split(r"[\s;]", entry.split("==")[1])[0] for name, entry in locked().items()
    }
    pins = pinned()
    assert versions.keys() - pins.keys() == FOR_OTHER_PLATFORMS
    assert pins.keys() - versions.keys() == ONLY_WITH_TORCH
    assert {name: versions[name] for name in versions.keys() & pins.keys()} == {
        name: pins[name] for name in versions.keys() & pins.keys()
    }, "run `make lock` after a change of constraints.txt"


def test_every_package_of_the_lock_has_hashes() -> None:
    for name, entry in locked().items():
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry), name


def test_the_lock_names_no_index() -> None:
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert "://" not in text
    assert "index-url" not in text


def test_all_that_development_needs_is_in_the_lock() -> None:
    wanted = {
        canonicalize_name(need.name)
        for need in map(Requirement, requires("tinkex") or [])
        if need.marker is None
        or need.marker.evaluate({"extra": ""})
        or any(need.marker.evaluate({"extra": extra}) for extra in ("dev", "server", "depot"))
    }
    assert wanted - locked().keys() == {"torch"}
