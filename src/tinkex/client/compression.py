"""zstd for request bodies, where the server announces it and this Python supports it."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence

Compress = Callable[[bytes], bytes]
HEADERS = {"Content-Encoding": "zstd"}


@functools.cache
def _compressor() -> Compress | None:
    """The first zstd at hand: the standard library's (3.14), its backport, or `zstandard`."""
    for module in ("compression.zstd", "backports.zstd", "zstandard"):
        try:
            compress: Compress = importlib.import_module(module).compress
        except ImportError:
            continue
        return compress
    return None


def compressed(body: Sequence[bytes]) -> tuple[Sequence[bytes], dict[str, str]]:
    """The body as one zstd frame and the header that says so; untouched where there is no zstd."""
    compress = _compressor()
    if compress is None:
        return body, {}
    return (compress(b"".join(body)),), HEADERS
