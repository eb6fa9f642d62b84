"""A kept kernel library is loaded only if it is our own file and holds what was built.

The libraries planted here leave a trace as soon as they are loaded.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tinkex.engine.native import build

Find = Callable[[], "ctypes.CDLL | build.NoKernels"]
NOBODY = 65534


@pytest.fixture
def find(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Find:
    """Looks for kernels as a new process of a new user would."""
    if next(filter(None, map(shutil.which, build._COMPILERS)), None) is None:
        pytest.skip("no C compiler")
    tmp_path.chmod(0o700)
    monkeypatch.setattr(build, "user_cache_path", lambda _: tmp_path / "cache")
    return build._find.__wrapped__


@pytest.fixture
def kept(find: Find, tmp_path: Path) -> Path:
    """The library that a first start has built and kept."""
    assert isinstance(find(), ctypes.CDLL)
    (path,) = (tmp_path / "cache" / "kernels").iterdir()
    return path


@pytest.fixture
def hostile(tmp_path: Path) -> bytes:
    """Whole kernels, which write a file when they are loaded."""
    source, made = tmp_path / "hostile.c", tmp_path / "hostile.so"
    source.write_text(
        "#include <stdio.h>\n__attribute__((constructor)) static void run(void)"
        f'{{ fclose(fopen("{tmp_path / "canary"}", "w")); }}\n'
    )
    sources = [str(source), *map(str, sorted(build._HERE.glob("*.c")))]
    compiler = build._compilers()[0]
    subprocess.run([compiler, *build._FLAGS, "-o", str(made), *sources, "-lm"], check=True)
    return made.read_bytes()


def plant(kept: Path, content: bytes) -> Path:
    """In place of what was kept, under the name that its own hash gives it."""
    kept.unlink()  # not written to, for it may be mapped into this process
    path = kept.with_name(build._file_name(kept.name.partition("-")[0], content))
    path.write_bytes(content)
    path.chmod(0o600)
    return path


def _link(path: Path) -> None:
    elsewhere = path.parents[2] / "elsewhere.so"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def _foreign(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(path, NOBODY, -1)


def _writable_by_group(path: Path) -> None:
    path.chmod(0o660)


def _writable_by_all(path: Path) -> None:
    path.chmod(0o602)


def test_a_planted_library_leaves_a_trace(hostile: bytes, tmp_path: Path) -> None:
    ctypes.CDLL(str(tmp_path / "hostile.so"))
    assert (tmp_path / "canary").exists()


@pytest.mark.parametrize(
    "spoil", [_link, _foreign, _writable_by_group, _writable_by_all], ids=lambda each: each.__name__
)
def test_a_file_that_others_may_have_written_is_built_again(
    spoil: Callable[[Path], None], kept: Path, hostile: bytes, find: Find, tmp_path: Path
) -> None:
    spoil(plant(kept, hostile))
    assert isinstance(find(), ctypes.CDLL)
    assert not (tmp_path / "canary").exists()
    (path,) = kept.parent.iterdir()
    found = path.lstat()
    assert stat.S_ISREG(found.st_mode)
    assert (stat.S_IMODE(found.st_mode), found.st_uid) == (0o600, os.geteuid())
    assert path.read_bytes() != hostile


def test_changed_content_is_built_again(
    kept: Path, hostile: bytes, find: Find, tmp_path: Path
) -> None:
    kept.unlink()
    kept.write_bytes(hostile)
    kept.chmod(0o600)
    assert isinstance(find(), ctypes.CDLL)
    assert not (tmp_path / "canary").exists()
    (path,) = kept.parent.iterdir()
    assert path.read_bytes() != hostile


def test_the_bytes_that_were_checked_are_the_bytes_that_are_loaded(
    kept: Path, hostile: bytes, find: Find, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is another one by the time it is loaded."""
    load = build._load
    other = tmp_path / "other.so"
    other.write_bytes(hostile)

    def swap_and_load(path: Path) -> ctypes.CDLL:
        other.replace(kept)
        return load(path)

    monkeypatch.setattr(build, "_load", swap_and_load)
    assert isinstance(find(), ctypes.CDLL)
    assert kept.read_bytes() == hostile, "it was swapped"
    assert not (tmp_path / "canary").exists()
