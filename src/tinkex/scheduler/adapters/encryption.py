"""Exported weights, encrypted with age to the recipients the client named."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from tinkex.engine.interface import EngineFailure, EngineUserError
from tinkex.files.atomic_folder import folder_size_bytes, payload_files, write_folder
from tinkex.files.os_errors import translate_os_errors


def encrypt_folder(source: Path, folder: Path, recipients: list[str]) -> int:
    """The size of a folder with every file of the source, encrypted and with the suffix `.age`.

    Raises:
        EngineUserError: a recipient is no age or SSH public key.
    """
    try:
        pyrage: Any = importlib.import_module("pyrage")
    except ImportError as error:
        raise EngineFailure(
            "This server cannot encrypt: the package pyrage is not installed.", code="no-age"
        ) from error
    keys = [_recipient(pyrage, text) for text in recipients]
    with translate_os_errors(f"{source.name} could not be read"):
        files = {
            f"{path.name}.age": pyrage.encrypt(path.read_bytes(), keys)
            for path in payload_files(source)
        }
    write_folder(folder, files)
    return folder_size_bytes(folder)


def _recipient(pyrage: Any, text: str) -> object:
    for module in ("x25519", "ssh"):
        try:
            return getattr(pyrage, module).Recipient.from_str(text)
        except Exception:  # noqa: S112  each kind of key has its own error type
            continue
    raise EngineUserError(
        f"{text[:24]}… is neither an age nor an SSH public key.",
        code="bad-recipient",
        field="age_encryption_recipients",
    )
