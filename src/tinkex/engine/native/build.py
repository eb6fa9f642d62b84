"""Compiles the kernels, once, with the C compiler of the machine they run on.

The library is kept in the user's cache folder, named by everything it depends on (sources,
compiler, flags, processor) and by its own hash. It is loaded from there only if no other user can
write to folder and file and the hash is right. Without a compiler, or if torch uses another OpenMP
than GNU's, there are no kernels and sampling runs on torch's operations; every failure here has
only that effect. Knows nothing of torch.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import stat
import subprocess
import tempfile
import time
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path

from platformdirs import user_cache_path

from tinkex.child_environment import child_environment

__all__ = ["FUNCTIONS", "NoKernels", "library", "team_function"]

FUNCTIONS = ("tinkex_norm", "tinkex_gate", "tinkex_rotate", "tinkex_attend", "tinkex_lora")

_HERE = Path(__file__).parent
_FLAGS = ("-std=gnu11", "-O3", "-march=native", "-ffp-contract=fast", "-fPIC", "-shared")
_COMPILERS = ("cc", "gcc", "clang")
_TIMEOUT_S = 60.0
_UNUSED_S = 90 * 24 * 3600.0
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class NoKernels(Exception):
    """The reason why kernels are not available, with advice."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def library() -> ctypes.CDLL:
    """The compiled kernels, built on first use, which takes about two seconds.

    Raises:
        NoKernels: they cannot be built or loaded here.
    """
    found = _find()
    if isinstance(found, NoKernels):
        raise found
    return found


def team_function() -> int:
    """The address of the function that starts a parallel region on torch's threads.

    Raises:
        NoKernels: torch is not loaded, or uses another OpenMP.
    """
    try:
        function = ctypes.CDLL(None)["GOMP_parallel"]
    except (AttributeError, OSError, TypeError) as error:
        hint = "Use a build of PyTorch with GNU's OpenMP, as those for Linux are."
        raise NoKernels("PyTorch does not use GNU's OpenMP here", hint) from error
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@cache
def _find() -> ctypes.CDLL | NoKernels:
    names = {compiler: _fingerprint(compiler) for compiler in _compilers()}
    if os.name != "posix" or not names:
        return NoKernels(
            "there is no C compiler (cc, gcc or clang)", "Install a C compiler: gcc or clang."
        )
    kept = _kept_folder()
    loaded = (_load_kept(kept, name) for name in names.values() if kept is not None)
    found = next(filter(None, loaded), None)
    return found or _build_by_any(names, kept)


def _compilers() -> list[str]:
    """The installed compilers, each once: `cc` is usually another name for one of the others."""
    found = filter(None, map(shutil.which, _COMPILERS))
    by_file = {Path(compiler).resolve(): compiler for compiler in reversed(list(found))}
    return list(by_file.values())[::-1]


def _build_by_any(names: dict[str, str], kept: Path | None) -> ctypes.CDLL | NoKernels:
    """Builds with the first of these compilers that succeeds."""
    errors = []
    for compiler, name in names.items():
        try:
            return _build(compiler, kept, name)
        except (OSError, AttributeError, subprocess.SubprocessError) as error:
            output = str(getattr(error, "stderr", None) or error).strip()[-500:]
            errors.append(f"{compiler} did not build them: {output}")
    return NoKernels("; ".join(errors), f"See what {next(iter(names))} lacks.")


def _build(compiler: str, kept: Path | None, name: str) -> ctypes.CDLL:
    """Compiles and loads the library, and keeps it if it loads."""
    sources = [str(path) for path in sorted(_HERE.glob("*.c"))]
    with tempfile.TemporaryDirectory(prefix="tinkex-kernels-") as folder:
        made = Path(folder) / "kernels.so"
        command = [compiler, *_FLAGS, "-o", str(made), *sources, "-lm"]
        subprocess.run(  # noqa: S603
            command, check=True, capture_output=True, encoding="utf-8", errors="replace",
            timeout=_TIMEOUT_S, env=child_environment(),
        )  # fmt: skip
        found = _load(made)
        if kept is not None:
            with suppress(OSError):  # then it is built again at the next start
                _keep(made.read_bytes(), kept, name)
                _drop_unused(kept)
    return found


def _load(path: Path) -> ctypes.CDLL:
    found = ctypes.CDLL(str(path))
    for function in FUNCTIONS:
        getattr(found, function)
    return found


def _load_kept(folder: Path, name: str) -> ctypes.CDLL | None:
    """The library kept under this name, if the file is ours, unchanged and loads. Any other file
    of this name is deleted."""
    for path in folder.glob(f"{name}-*.so"):
        with suppress(OSError, AttributeError):
            content = _own_content(path)
            if content is not None and path.name == _file_name(name, content):
                found = _load_content(content)
                with suppress(OSError):  # only `_drop_unused` needs it
                    os.utime(path)
                return found
            path.unlink()
    return None


def _own_content(path: Path) -> bytes | None:
    """The bytes of a regular file that is ours and that no other user can write to; else None."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # such as a symbolic link
        return None
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(file.fileno())
        is_ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
        return file.read() if is_ours and not found.st_mode & _OTHERS_MAY_WRITE else None


def _load_content(content: bytes) -> ctypes.CDLL:
    """Loads these bytes from a private copy: the file they were read from may have changed."""
    with tempfile.TemporaryDirectory(prefix="tinkex-kernels-") as folder:
        copy = Path(folder) / "kernels.so"
        copy.write_bytes(content)
        return _load(copy)


def _keep(content: bytes, folder: Path, name: str) -> None:
    handle, made = tempfile.mkstemp(suffix=".tmp", dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(made).replace(folder / _file_name(name, content))
    finally:
        Path(made).unlink(missing_ok=True)


def _drop_unused(folder: Path) -> None:
    """Deletes libraries that were not used for a long time, mostly those of older versions."""
    oldest = time.time() - _UNUSED_S
    for path in folder.glob("*.so"):
        if path.stat().st_mtime < oldest:
            path.unlink()


def _file_name(name: str, content: bytes) -> str:
    return f"{name}-{sha256(content).hexdigest()[:32]}.so"


def _kept_folder() -> Path | None:
    """The folder that keeps libraries between starts; None if there is no safe one.

    Its files are executed, so no other user may be able to change it or a folder above it.
    """
    try:
        folder = user_cache_path("tinkex") / "kernels"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = folder.resolve()
        is_safe = all(_is_safe(each, is_above=each != folder) for each in (folder, *folder.parents))
    except (OSError, RuntimeError):  # such as no home
        return None
    return folder if is_safe and os.access(folder, os.W_OK) else None


def _is_safe(folder: Path, *, is_above: bool) -> bool:
    found = folder.stat()
    if found.st_uid not in ({0, os.geteuid()} if is_above else {os.geteuid()}):
        return False
    # In a sticky folder, such as /tmp, users cannot move or replace files of others.
    is_sticky = is_above and bool(found.st_mode & stat.S_ISVTX)
    return is_sticky or not found.st_mode & _OTHERS_MAY_WRITE


def _fingerprint(compiler: str) -> str:
    """A name for the library that these sources give with this compiler on this processor."""
    real = Path(compiler).resolve()
    parts = [platform.machine(), str(real), str(real.stat().st_mtime_ns), *_FLAGS, _processor()]
    digest = sha256("\n".join(parts).encode())
    for path in sorted(_HERE.glob("*.[ch]")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:32]


def _processor() -> str:
    """The processor's features, as the system lists them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    wanted = ("flags", "Features", "model name", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))
