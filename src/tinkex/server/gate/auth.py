"""Authentication: every route but the listed ones needs a key, by default and without exception.

Keys are looked up by their SHA-256 and compared in constant time. A token in place of a key is one
this server signed for one row of the keys, and is good as long as that row is. Answers are
remembered for two seconds, so a revoked key and its tokens die within that time.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from typing import Any

from starlette.types import Scope

from tinkex.server.errors import Unauthenticated
from tinkex.server.gate.signing import Signer
from tinkex.server.http.headers import header
from tinkex.store import Database, keys
from tinkex.store.keys import Key
from tinkex.web import files

PUBLIC_PATHS = frozenset({"/api/v1/healthz", "/healthz", "/api/v1/version"})
"""Answered without a key. The other exceptions are signed downloads, where the link is the key, and
the files of the page."""

SIGNED_PREFIX = "/api/v1/download/"

OPERATOR_PREFIX = "/api/v1/operator/"
"""Answered to the operator's token, and to no API key."""

_REMEMBER_S = 2.0
_REMEMBER_MOST = 4096
_LOOK_UP = 256  # keys at once


PAGE_PREFIX = "/page/"
_PAGE_PATHS = frozenset({"/", *(PAGE_PREFIX + name for name in files.names())})
"""The page: static files, each named here. Any other path below the prefix needs a key."""


def is_public(path: str) -> bool:
    """Whether a request to this path needs no key."""
    return path in PUBLIC_PATHS or path.startswith(SIGNED_PREFIX) or path in _PAGE_PATHS


def is_for_operators(path: str) -> bool:
    """Whether a request to this path needs the operator's token in place of a key."""
    return path.startswith(OPERATOR_PREFIX)


def credential_of(scope: Scope) -> str:
    """The key or token that a request brings: in X-Api-Key, else as `Authorization: Bearer`."""
    if key := header(scope, b"x-api-key"):
        return key
    scheme, _, key = header(scope, b"authorization").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def user_urn(owner: str) -> str:
    """The name under which clients know the owner of a key."""
    return f"tml:user:{owner}"


class Keyring:
    """Finds the owner of a credential."""

    def __init__(self, db: Database, signer: Signer) -> None:
        self._db = db
        self._signer = signer
        self.uses: dict[int, float] = {}  # when keys were last used; not yet written
        self._known: dict[bytes, tuple[Key, float]] = {}
        self._pending: dict[bytes, asyncio.Future[Key | None]] = {}
        self._looking: asyncio.Task[None] | None = None

    async def authenticate(self, credential: str) -> Key:
        """The key's record.

        Raises:
            Unauthenticated: it is missing, unknown, revoked or expired.
        """
        if not credential:
            raise Unauthenticated("No API key was sent.")
        claims = self._claims(credential)
        key = await self._in_use(_digest(credential, claims))
        if not _is_for(claims, key):
            raise Unauthenticated("The token was made for a key that was deleted since.")
        return key

    def born(self, credential: str) -> float | None:
        """When the key was exchanged for the first token of the chain that this token belongs to,
        by the steady clock; None for a key."""
        claims = self._claims(credential)
        return None if claims is None else float(claims["born"])

    def forget(self, key: Key) -> None:
        """Drops what is remembered of a key."""
        self._known.pop(key.hash, None)

    async def _in_use(self, digest: bytes) -> Key:
        known = self._known.get(digest)
        if known is not None and known[1] > time.monotonic():
            return known[0]
        key = await self._look_up(digest)
        if key is None or key.revoked_at is not None or not hmac.compare_digest(key.hash, digest):
            self._known.pop(digest, None)
            raise Unauthenticated("The API key is not known here, or it was revoked.")
        self._remember(digest, key)
        self.uses[key.key_id] = time.time()
        return key

    async def _look_up(self, digest: bytes) -> Key | None:
        """The key in the store. Requests that arrive meanwhile share the next look-up: a flood of
        unknown keys costs one query at a time."""
        answer = self._pending.get(digest)
        if answer is None:
            answer = self._pending[digest] = asyncio.get_running_loop().create_future()
        if self._looking is None:
            self._looking = asyncio.create_task(self._answer_all())
        return await asyncio.shield(answer)

    async def _answer_all(self) -> None:
        while self._pending:
            batch = {digest: self._pending.pop(digest) for digest in list(self._pending)[:_LOOK_UP]}
            try:
                found = await self._db.aread(keys.find_many, list(batch))
            except Exception as error:
                for answer in batch.values():
                    answer.set_exception(error)
                continue
            for digest, answer in batch.items():
                answer.set_result(found.get(digest))
        self._looking = None

    def _claims(self, credential: str) -> dict[str, Any] | None:
        """What a token claims; None for a key."""
        if not credential.startswith("eyJ"):
            return None
        claims = self._signer.read_token(credential)
        if claims is None:
            raise Unauthenticated(
                "The token is not ours, or it has expired.",
                hint="Exchange the API key for a new one: POST /api/v1/auth/token.",
            )
        return claims

    def _remember(self, digest: bytes, key: Key) -> None:
        if len(self._known) >= _REMEMBER_MOST:
            self._known.clear()
        self._known[digest] = (key, time.monotonic() + _REMEMBER_S)


def _digest(credential: str, claims: dict[str, Any] | None) -> bytes:
    """What is stored of the key that was sent, or that the token was made for."""
    return keys.hash_key(credential) if claims is None else bytes.fromhex(claims["key"])


def _is_for(claims: dict[str, Any] | None, key: Key) -> bool:
    """Whether a token was made for this row; a key always fits the row that its hash found."""
    return claims is None or key.key_id == claims["key_id"]
