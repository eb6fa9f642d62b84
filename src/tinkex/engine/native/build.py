"""Kernels compiled on the machine they run on, by its own C compiler, once.

The result lies in the user's cache folder, named by everything it depends on: sources, compiler,
flags and processor. Where there is no compiler, or torch has another team of threads than GNU's
OpenMP, there are no kernels, and sampling runs on torch's operations alone. Knows nothing of torch.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from functools import cache
from hashlib import sha256
from pathlib import Path

from platformdirs import user_cache_path

__all__ = ["NoKernels", "library", "team_function"]

_HERE = Path(__file__).parent
_FLAGS = ("-std=gnu11", "-O3", "-march=native", "-ffp-contract=fast", "-fPIC", "-shared")
_COMPILERS = ("cc", "gcc", "clang")
_TIMEOUT_S = 120.0


class NoKernels(Exception):
    """Why there are none here."""


def library() -> ctypes.CDLL:
    """The compiled kernels; built if they are not there yet, which takes about two seconds.

    Raises:
        NoKernels: they cannot be built or loaded here.
    """
    found = _find()
    if isinstance(found, NoKernels):
        raise found
    return found


def team_function() -> int:
    """The address of what starts work on the threads torch's operations run on.

    Raises:
        NoKernels: torch has threads of another kind.
    """
    try:
        function = ctypes.CDLL(None)["GOMP_parallel"]
    except (AttributeError, OSError, TypeError) as error:
        raise NoKernels("torch does not use GNU's OpenMP here") from error
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@cache
def _find() -> ctypes.CDLL | NoKernels:
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if os.name != "posix" or compiler is None:
        return NoKernels("there is no C compiler (cc, gcc or clang)")
    try:
        name = f"{_fingerprint(compiler)}.so"
        kept = _kept_folder()
        if kept is not None:
            path = kept / name
            return ctypes.CDLL(str(path if path.exists() else _build(compiler, kept, name)))
        with tempfile.TemporaryDirectory(prefix="tinkex-kernels-") as folder:
            return ctypes.CDLL(str(_build(compiler, Path(folder), name)))
    except (OSError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", None) or error)
        return NoKernels(f"{compiler} did not build them: {said.strip()[-500:]}")


def _build(compiler: str, folder: Path, name: str) -> Path:
    """Compiles into the folder; several processes may do so at the same time."""
    sources = [str(path) for path in sorted(_HERE.glob("*.c"))]
    handle, made = tempfile.mkstemp(suffix=".so", dir=folder)
    os.close(handle)
    try:
        command = [compiler, *_FLAGS, "-o", made, *sources, "-lm"]
        subprocess.run(  # noqa: S603
            command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S
        )
        Path(made).replace(folder / name)
    finally:
        Path(made).unlink(missing_ok=True)
    return folder / name


def _kept_folder() -> Path | None:
    """Where they are kept from one start to the next; None if there is no safe place.

    What lies there is run, so it must be ours, and nobody else may write to it.
    """
    folder = user_cache_path("tinkex") / "kernels"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError:
        return None
    is_ours = found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return folder if is_ours and os.access(folder, os.W_OK) else None


def _fingerprint(compiler: str) -> str:
    """A name for what these sources become with this compiler on this processor."""
    real = Path(compiler).resolve()
    parts = [platform.machine(), str(real), str(real.stat().st_mtime_ns), *_FLAGS, _processor()]
    digest = sha256("\n".join(parts).encode())
    for path in sorted(_HERE.glob("*.[ch]")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:32]


def _processor() -> str:
    """What the processor can do, in the system's words."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    wanted = ("flags", "Features", "model name", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))
