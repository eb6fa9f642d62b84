"""The digest that identifies a base model: of its config, and of samples of its weights.

Weights can be hundreds of gigabytes, so of each file the size, the header and parts spread over it
are hashed. A fine-tuned copy of a model differs in them.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["folder_digest"]

_PARTS = 16
_PART_BYTES = 1 << 16


def folder_digest(folder: Path) -> str:
    """The digest of the model in a folder. Raises OSError if it cannot be read."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as handle:
            for number in range(_PARTS):
                handle.seek(size * number // _PARTS)
                digest.update(handle.read(_PART_BYTES))
    return digest.hexdigest()
