"""Losses of installed packages: found by name only, and refused with a reason."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.loss_package import BROKEN, FOCAL, SEQUENCE_ERROR, write_package
from tinkex.engine.errors import EngineUserError
from tinkex.engine.loss_plugins import load_losses
from tinkex.losses import BUILT_IN

RAISES = "raise OSError('no licence file')"


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path whose packages are forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path


def test_named_losses_come_after_the_built_in_ones(packages: Path) -> None:
    write_package(packages, "more-losses", focal=FOCAL, sequence_error=SEQUENCE_ERROR)
    losses = load_losses(["focal"])
    assert list(losses) == [*BUILT_IN, "focal"]
    assert losses["focal"].formula == "-w * (1 - p)^gamma * lp"


def test_nothing_is_imported_that_is_not_named(packages: Path) -> None:
    write_package(packages, "trap-losses", trap=RAISES)
    assert load_losses() == BUILT_IN
    assert not any(name.startswith("trap_losses") for name in sys.modules)


@pytest.mark.parametrize(
    ("name", "source", "words"),
    [
        ("ppo", FOCAL, "built in and cannot be replaced"),
        ("absent", "", "not offered by any installed package"),
        ("trap", RAISES, "OSError: no licence file"),
        ("number", "LOSS = 3", "is a int at .*, not a Loss"),
        ("other", FOCAL, "names itself 'focal'"),
        (
            "wrong",
            BROKEN.replace('name="broken"', 'name="wrong", zero_where="x"'),
            "declared wrongly",
        ),
        ("missing", "SOMETHING = 1", "AttributeError"),
    ],
)
def test_what_cannot_be_used_is_refused(name: str, source: str, words: str, packages: Path) -> None:
    if source:
        write_package(packages, "odd-losses", **{name: source})
    with pytest.raises(EngineUserError, match=words) as caught:
        load_losses([name])
    assert caught.value.code == "bad-loss-plugin"
    assert repr(name) in caught.value.message


def test_two_packages_cannot_offer_one_name(packages: Path) -> None:
    for package in ("one-losses", "two-losses"):
        write_package(packages, package, focal=FOCAL)
    with pytest.raises(EngineUserError, match="offered by one-losses and two-losses"):
        load_losses(["focal"])
