"""The handshake of a remote worker and a server: each proves that it has the same token.

    server -> worker   Challenge: a nonce
    worker -> server   Hello: a nonce, what the worker is, and a proof over all of it
    server -> worker   Welcome: where folders are, with a proof; or why it is refused

The token itself never crosses the connection. What follows is not encrypted unless the connection
is TLS. Messages are msgpack and short, so that a peer without the token can cost little memory.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
from typing import TypeVar

import msgspec

from tinkex.engine.interface import ROLES, EngineFingerprint
from tinkex.engine.process.frames import FrameReader, FrameSocket, write_frame
from tinkex.engine.process.liveness import HANG_S
from tinkex.version import __version__

__all__ = [
    "FolderPlace",
    "Greeting",
    "HandshakeError",
    "RefusedError",
    "RemoteWorkerInfo",
    "answer",
    "greet",
    "join",
    "keep_alive",
    "refuse",
]

T = TypeVar("T")

PROTOCOL = 1
_MAX_BYTES = 64 * 1024
_MAGIC = "tinkex-worker"


class HandshakeError(Exception):
    """The peer does not speak the worker protocol, or has another token."""


class RefusedError(HandshakeError):
    """The server refused this worker; the message says why."""


class RemoteWorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's description of itself."""

    name: str
    host: str
    pid: int
    models: dict[str, str]  # the digest of each base model, by name
    fingerprint: EngineFingerprint
    roles: tuple[str, ...] = ROLES
    version: str = __version__


class FolderPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The place where a server keeps adapter folders: a depot, or a folder that the worker sees."""

    root: str
    depot: str | None
    database_id: str
    silence_s: float = HANG_S  # after which a worker closes the connection


class _Challenge(msgspec.Struct, frozen=True, kw_only=True):
    magic: str
    protocol: int
    nonce: bytes


class _Hello(msgspec.Struct, frozen=True, kw_only=True):
    protocol: int
    nonce: bytes
    info: bytes
    proof: bytes


class _Welcome(msgspec.Struct, frozen=True, kw_only=True):
    refused: str
    place: bytes
    proof: bytes


class Greeting(msgspec.Struct, frozen=True, kw_only=True):
    """An authenticated worker, and the data for the server's own proof."""

    info: RemoteWorkerInfo
    nonce: bytes


def greet(connection: FrameSocket, token: bytes) -> Greeting:
    """Authenticates the worker at the other end and returns it; call `answer` or `refuse` next.

    Raises:
        HandshakeError: it has another token, or speaks another protocol.
    """
    frames, nonce = FrameReader(connection, _MAX_BYTES), secrets.token_bytes(32)
    _send(connection, _Challenge(magic=_MAGIC, protocol=PROTOCOL, nonce=nonce))
    hello = _read(frames, _Hello)
    if hello.protocol != PROTOCOL:
        refuse(connection, f"This server speaks version {PROTOCOL} of the worker protocol.")
        raise HandshakeError(f"it speaks version {hello.protocol} of the worker protocol")
    proof = _proof(token, b"worker", nonce, hello.nonce, hello.info)
    if not hmac.compare_digest(proof, hello.proof):
        refuse(connection, "The token is not the one of this server.")
        raise HandshakeError("it has another token")
    return Greeting(info=_decode(hello.info, RemoteWorkerInfo), nonce=hello.nonce)


def answer(connection: FrameSocket, token: bytes, greeting: Greeting, place: FolderPlace) -> None:
    """Accepts the worker."""
    raw = msgspec.msgpack.encode(place)
    proof = _proof(token, b"server", greeting.nonce, raw)
    _send(connection, _Welcome(refused="", place=raw, proof=proof))


def refuse(connection: FrameSocket, reason: str) -> None:
    """Refuses the worker with a reason."""
    _send(connection, _Welcome(refused=reason, place=b"", proof=b""))


def join(connection: FrameSocket, token: bytes, info: RemoteWorkerInfo) -> FolderPlace:
    """Authenticates the server at the other end; returns where it keeps its folders.

    Raises:
        RefusedError: the server refused this worker.
        HandshakeError: it has another token, or does not speak the protocol.
    """
    frames, nonce = FrameReader(connection, _MAX_BYTES), secrets.token_bytes(32)
    challenge = _read(frames, _Challenge)
    if challenge.magic != _MAGIC:
        raise HandshakeError("it is not a Tinkex server")
    raw = msgspec.msgpack.encode(info)
    proof = _proof(token, b"worker", challenge.nonce, nonce, raw)
    _send(connection, _Hello(protocol=PROTOCOL, nonce=nonce, info=raw, proof=proof))
    welcome = _read(frames, _Welcome)
    if welcome.refused:
        raise RefusedError(welcome.refused)
    if not hmac.compare_digest(_proof(token, b"server", nonce, welcome.place), welcome.proof):
        raise HandshakeError("it has another token")
    return _decode(welcome.place, FolderPlace)


def keep_alive(connection: socket.socket) -> None:
    """Sets TCP keepalive, so that a lost machine is noticed within half a minute."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _proof(token: bytes, side: bytes, *parts: bytes) -> bytes:
    """Computes the proof. Each part is hashed first: no two lists of parts give the same bytes."""
    hashes = b"".join(hashlib.sha256(part).digest() for part in (side, *parts))
    return hmac.digest(token, hashes, "sha256")


def _send(connection: FrameSocket, message: msgspec.Struct) -> None:
    try:
        write_frame(connection, msgspec.msgpack.encode(message))
    except OSError as error:
        raise HandshakeError(f"the connection failed: {error}") from error


def _read(frames: FrameReader, wanted: type[T]) -> T:
    raw = frames.next()
    if raw is None:
        raise HandshakeError("it closed the connection, sent too much, or sent nothing in time")
    return _decode(raw, wanted)


def _decode(raw: bytes, wanted: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(raw, type=wanted)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise HandshakeError(f"it sent no valid {wanted.__name__}") from error
