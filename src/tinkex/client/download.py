"""Downloading the files of a checkpoint: streamed, checked, and visible only when whole.

The files come from signed addresses with plain GETs and no key. Each is written to a folder beside
the target, which takes the target's place in one rename when every file is complete.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath

import aiohttp
from yarl import URL

from tinkex.client.transport import Transport
from tinkex.errors import (
    APIConnectionError,
    APIResponseValidationError,
    APITimeoutError,
    ValidationError,
    status_error_class,
)
from tinkex.types.checkpoint import ExternalWeightsUrlsResponse
from tinkex.version import __version__

Progress = Callable[[str, int, int | None], None]
"""Called with (file, bytes so far, bytes in all or None)."""
Urls = Callable[[], Awaitable[ExternalWeightsUrlsResponse]]

PIECE_BYTES = 1 << 20
RENEW_BEFORE = timedelta(minutes=5)
SILENCE_S = 60.0
HASH_HEADER = "x-content-sha256"
_HEX_SHA256 = re.compile(r"[0-9a-f]{64}")


async def download_files(
    transport: Transport, urls: Urls, folder: Path, on_progress: Progress | None
) -> Path:
    """The folder with all files in it.

    Raises:
        APIConnectionError: the transfer broke off or a file came short; nothing is left behind.
        ValidationError: there is a file where the folder is to be.
        APIResponseValidationError: a file name would leave the folder, or a hash does not fit.
    """
    listed = await urls()
    names = sorted(_safe_name(name) for name in listed.urls)
    if not names:
        raise APIResponseValidationError("The checkpoint has no files.")
    staging = await asyncio.to_thread(_make_staging, folder)
    try:
        for name in names:
            if listed.expires.astimezone(UTC) - datetime.now(UTC) < RENEW_BEFORE:
                listed = await urls()
            if name not in listed.urls:
                raise APIResponseValidationError(f"The server has lost {name} of the checkpoint.")
            await _download_one(transport, listed.urls[name], staging / name, name, on_progress)
        await asyncio.to_thread(_put_in_place, staging, folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return folder


def _make_staging(folder: Path) -> Path:
    if folder.exists() and not folder.is_dir():
        raise ValidationError(f"{folder} is a file; give the name of a folder.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.part")
    staging.mkdir()
    return staging


def _safe_name(name: str) -> str:
    """The name, if it is a plain relative path that stays inside the folder."""
    path = PurePosixPath(name)
    is_plain = name and "\\" not in name and "\0" not in name and ":" not in name
    if (
        not is_plain
        or path.is_absolute()
        or any(part in ("..", ".", "") for part in name.split("/"))
    ):
        raise APIResponseValidationError(f"The server named a file {name!r}, which is not allowed.")
    return name


async def download_file(transport: Transport, url: str, path: Path) -> Path:
    """Downloads one file; it appears, or replaces an older one, only once it is whole."""
    staging = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        await _download_one(transport, url, staging, path.name, None)
        staging.replace(path)
    finally:
        staging.unlink(missing_ok=True)
    return path


async def _download_one(
    transport: Transport, url: str, target: Path, name: str, on_progress: Progress | None
) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    pool = transport.runtime.pools.get("rest")
    timeout = aiohttp.ClientTimeout(
        total=None, sock_connect=transport.config.connect_timeout_s, sock_read=SILENCE_S
    )
    headers = {"User-Agent": f"tinkex/{__version__}", "Accept-Encoding": "identity"}
    try:
        async with pool.get(
            URL(url, encoded=True), headers=headers, timeout=timeout, **transport.proxy_options
        ) as answer:
            if answer.status != 200:
                raise status_error_class(answer.status)(
                    f"{name} could not be fetched: the storage answered {answer.status}.",
                    status=answer.status,
                )
            await _write(answer, target, name, on_progress)
    except TimeoutError as error:
        raise APITimeoutError(f"{name}: nothing came for {SILENCE_S:g} s.") from error
    except (aiohttp.ClientError, OSError) as error:
        # The message of an HTTP error may hold the signed address, so only its type is named.
        raise APIConnectionError(f"{name} broke off: {type(error).__name__}.") from error


async def _write(
    answer: aiohttp.ClientResponse, target: Path, name: str, on_progress: Progress | None
) -> None:
    expected = answer.content_length
    digest, written = hashlib.sha256(), 0
    with target.open("xb") as file:
        async for piece in answer.content.iter_chunked(PIECE_BYTES):
            await asyncio.to_thread(file.write, piece)
            digest.update(piece)
            written += len(piece)
            if on_progress is not None:
                await asyncio.to_thread(on_progress, name, written, expected)
        file.flush()
        os.fsync(file.fileno())
    if expected is not None and written != expected:
        raise APIConnectionError(f"{name} came short: {written} of {expected} bytes.")
    _check_hash(answer.headers.get(HASH_HEADER, "").lower(), digest.hexdigest(), name)


def _check_hash(announced: str, found: str, name: str) -> None:
    """Compares with the hash the server sent along, if it sent one."""
    if _HEX_SHA256.fullmatch(announced) and announced != found:
        raise APIResponseValidationError(
            f"{name} is damaged: its SHA-256 is {found}, the server says {announced}.",
            hint="Download it again.",
        )


def _put_in_place(staging: Path, folder: Path) -> None:
    """Swaps the finished folder in; an older one goes only after the new one is there."""
    old = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.old")
    had_old = folder.exists()
    if had_old:
        folder.rename(old)
    try:
        staging.rename(folder)
    except OSError:
        if had_old:
            old.rename(folder)
        raise
    if had_old:
        shutil.rmtree(old, ignore_errors=True)
