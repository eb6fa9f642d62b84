"""The files of the page, with the forms in which they are sent.

They are package data: HTML, style sheets, ES modules and one vendored library, used as they are,
without a build step. Knows nothing of HTTP beyond media types and entity tags.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["INDEX", "WebFile", "names", "read"]

INDEX = "index.html"
"""The document; every other file is named in it or imported by one that is."""

_FOLDER = Path(__file__).parent / "static"
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}


@dataclass(frozen=True, slots=True)
class WebFile:
    """One file, plain and compressed."""

    plain: bytes
    gzipped: bytes
    etag: str
    media_type: str


@cache
def names() -> frozenset[str]:
    """The names of all files, and so of everything that is ever sent."""
    return frozenset(path.name for path in _FOLDER.iterdir() if path.suffix in _MEDIA_TYPES)


@cache
def read(name: str) -> WebFile | None:
    """The file of this name; None if there is none. It is read once."""
    if name not in names():
        return None
    path = _FOLDER / name
    plain = path.read_bytes()
    return WebFile(
        plain=plain,
        gzipped=gzip.compress(plain, 9, mtime=0),
        etag=f'"{hashlib.sha256(plain).hexdigest()[:24]}"',
        media_type=_MEDIA_TYPES[path.suffix],
    )
