"""Exports encrypted with age can be read by their recipients alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tinkex.engine.interface import EngineUserError
from tinkex.files.atomic_folder import payload_files
from tinkex.scheduler.adapters.encryption import encrypt_folder

pyrage = pytest.importorskip("pyrage")


def test_every_file_is_encrypted_to_every_recipient(tmp_path: Path) -> None:
    plain, folder = tmp_path / "plain", tmp_path / "export"
    plain.mkdir()
    (plain / "adapter_config.json").write_bytes(b"{}")
    (plain / "adapter_model.safetensors").write_bytes(b"weights")
    people = [pyrage.x25519.Identity.generate() for _ in range(2)]
    size = encrypt_folder(plain, folder, [str(person.to_public()) for person in people])
    files = {path.name: path.read_bytes() for path in payload_files(folder)}
    assert set(files) == {"adapter_config.json.age", "adapter_model.safetensors.age"}
    assert size == sum(map(len, files.values()))
    for person in people:
        assert pyrage.decrypt(files["adapter_model.safetensors.age"], [person]) == b"weights"
    stranger = pyrage.x25519.Identity.generate()
    with pytest.raises(pyrage.DecryptError):
        pyrage.decrypt(files["adapter_model.safetensors.age"], [stranger])


def test_what_is_no_key_is_the_users_mistake(tmp_path: Path) -> None:
    folder = tmp_path / "export"
    folder.mkdir()
    with pytest.raises(EngineUserError, match="neither an age nor an SSH"):
        encrypt_folder(folder, tmp_path / "encrypted", ["age1nonsense"])
