"""Tar archives in pieces, with their length known before the first, however large they are."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from starlette.responses import StreamingResponse

__all__ = ["TarFile", "chunks_of", "tar_response"]

_BLOCK, _END = 512, 1024  # what everything is filled up to, and what stands at the end
_PIECE_BYTES = 1 << 20


class TarFile(NamedTuple):
    """A file of the archive, whose chunks are `size` bytes together."""

    name: str
    size: int
    chunks: Callable[[], Iterable[bytes]]


def tar_response(files: Sequence[TarFile], filename: str | None = None) -> StreamingResponse:
    """The files as an archive; with a name, browsers save it under that."""
    heads = [_head(each) for each in files]
    contents = (each.size + -each.size % _BLOCK for each in files)
    headers = {"content-length": str(sum(map(len, heads)) + sum(contents) + _END)}
    if filename is not None:
        headers["content-disposition"] = f'attachment; filename="{filename}"'
    return StreamingResponse(_tar(files, heads), media_type="application/x-tar", headers=headers)


def chunks_of(path: Path) -> Iterator[bytes]:
    """A file on disk, piece by piece."""
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece


def _head(file: TarFile) -> bytes:
    info = tarfile.TarInfo(file.name)
    info.size = file.size
    return info.tobuf(tarfile.GNU_FORMAT)  # USTAR has no files above 8 GiB


def _tar(files: Sequence[TarFile], heads: Sequence[bytes]) -> Iterator[bytes]:
    for file, head in zip(files, heads, strict=True):
        yield head
        yield from file.chunks()
        yield bytes(-file.size % _BLOCK)
    yield bytes(_END)
