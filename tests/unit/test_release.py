"""`make release` finds what is wrong with a package before it is published."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from tinkex.version import __version__

ROOT = Path(__file__).parents[2]
INFO = f"tinkex-{__version__}.dist-info"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def release() -> ModuleType:
    before = list(sys.path)
    try:
        return load("check_release")
    finally:
        sys.path[:] = before


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel as `make release` builds it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    (found,) = folder.glob("*.whl")
    return found


def changed(
    wheel: Path,
    folder: Path,
    *,
    without: str = "",
    extra: str = "",
    edit: tuple[str, str] = ("", ""),
) -> Path:
    """A copy of the wheel without a file, with one more, or with its metadata edited."""
    target = folder / wheel.name
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(target, "w") as copy:
        for name in source.namelist():
            if name != without:
                body = source.read(name)
                if name == f"{INFO}/METADATA":
                    body = body.replace(edit[0].encode(), edit[1].encode(), 1)
                copy.writestr(name, body)
        if extra:
            copy.writestr(extra, "")
    return target


def test_a_wheel_as_it_is_built_is_right(release: ModuleType, wheel: Path) -> None:
    assert list(release.wheel_problems(wheel)) == []


@pytest.mark.parametrize(
    "name",
    [
        "tinkex/py.typed",
        "tinkex/engine/native/attend.c",
        "tinkex/engine/native/common.h",
        "tinkex/wire/tinker_public.proto",
        "tinkex/cli/main.py",
        f"{INFO}/licenses/LICENSE",
    ],
)
def test_what_a_wheel_lacks_is_found(
    release: ModuleType, wheel: Path, tmp_path: Path, name: str
) -> None:
    assert name in release.names_in_wheel(wheel)
    broken = changed(wheel, tmp_path, without=name)
    assert list(release.wheel_problems(broken)) == [f"{wheel.name} lacks {name}."]


@pytest.mark.parametrize(
    "name", ["tests/test_x.py", "tinkex/tests/test_x.py", "docs/index.md", "tinkex/native.so"]
)
def test_what_does_not_belong_in_a_wheel_is_found(
    release: ModuleType, wheel: Path, tmp_path: Path, name: str
) -> None:
    (problem,) = release.wheel_problems(changed(wheel, tmp_path, extra=name))
    assert name in problem


@pytest.mark.parametrize(
    "edit",
    [
        (f"Version: {__version__}", "Version: 9.9.9"),
        ("License-Expression: Apache-2.0", "License-Expression: MIT"),
        ("Provides-Extra: hf\n", ""),
        ("Requires-Dist: click<9,>=8.2\n", ""),
    ],
)
def test_wrong_metadata_is_found(
    release: ModuleType, wheel: Path, tmp_path: Path, edit: tuple[str, str]
) -> None:
    assert len(list(release.wheel_problems(changed(wheel, tmp_path, edit=edit)))) == 1


def test_this_version_has_a_dated_entry(release: ModuleType) -> None:
    assert release.version() == __version__
    assert list(release.changelog_problems(__version__)) == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("## [Unreleased]\n\n## 1.2.3 - 2026-01-31\n", 0),
        ("## 1.2.3 - 2026-01-31\n", 1),
        ("## [Unreleased]\n\n## 1.2.3\n", 1),
        ("## [Unreleased]\n\n## 11.2.3 - 2026-01-31\n", 1),
        ("# Nothing\n", 2),
    ],
)
def test_an_entry_without_its_date_is_found(release: ModuleType, text: str, count: int) -> None:
    assert len(list(release.changelog_problems("1.2.3", text))) == count


def test_a_plain_installation_works_and_has_nothing_heavy(
    release: ModuleType, wheel: Path, tmp_path: Path
) -> None:
    assert list(release.install_problems(wheel, tmp_path / "environment")) == []
    site = release.site_of(tmp_path / "environment" / "bin" / "python")
    found = {each.name for each in site.iterdir()}
    assert {"tinkex", "msgspec", "aiohttp"} <= found
    assert not {"torch", "starlette", "sqlalchemy", "tinker", "pytest"} & found


def test_a_package_that_does_not_start_is_found(
    release: ModuleType, wheel: Path, tmp_path: Path
) -> None:
    broken = changed(wheel, tmp_path, without="tinkex/cli/main.py")
    problems = list(release.install_problems(broken, tmp_path / "environment"))
    assert any("--version did not give" in each for each in problems)
