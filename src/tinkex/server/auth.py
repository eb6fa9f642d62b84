"""Who asks: every route but the listed ones needs a key, by default and without exception.

Keys are looked up by their SHA-256 and compared in constant time; a token in place of a key is one
this server signed. Answers are remembered for two seconds, so a revoked key dies within that time.
"""

from __future__ import annotations

import asyncio
import hmac
import time

from starlette.types import ASGIApp, Receive, Scope, Send

from tinkex.server.errors import Unauthenticated, error_response
from tinkex.server.heads import header
from tinkex.server.signing import Signer
from tinkex.store import Database, StoreError, keys
from tinkex.store.keys import Key

PUBLIC_PATHS = frozenset({"/api/v1/healthz", "/healthz", "/api/v1/version"})
"""Answered without a key. Signed downloads are the one other exception: the link is the key."""

SIGNED_PREFIX = "/api/v1/download/"

_REMEMBER_S = 2.0
_REMEMBER_MOST = 4096
_LOOK_UP = 256  # keys at once


def user_urn(owner: str) -> str:
    """The name under which clients know the owner of a key."""
    return f"tml:user:{owner}"


class Keyring:
    """Finds the owner of a credential."""

    def __init__(self, db: Database, signer: Signer) -> None:
        self._db = db
        self._signer = signer
        self._known: dict[bytes, tuple[Key, float]] = {}
        self._asked: dict[bytes, asyncio.Future[Key | None]] = {}
        self._looking: asyncio.Task[None] | None = None

    async def authenticate(self, credential: str) -> Key:
        """The key's record.

        Raises:
            Unauthenticated: it is missing, unknown, revoked or expired.
        """
        if not credential:
            raise Unauthenticated("No API key was sent.")
        digest = self._digest(credential)
        known = self._known.get(digest)
        if known is not None and known[1] > time.monotonic():
            return known[0]
        key = await self._look_up(digest)
        if key is None or key.revoked_at is not None or not hmac.compare_digest(key.hash, digest):
            self._known.pop(digest, None)
            raise Unauthenticated("The API key is not known here, or it was revoked.")
        self._remember(digest, key)
        return key

    def known_owner(self, credential: str) -> str | None:
        """Whose key it is, if that was looked up a moment ago; costs next to nothing."""
        known = self._known.get(keys.hash_key(credential))
        return None if known is None else known[0].owner

    def forget(self, key: Key) -> None:
        """Drops what is remembered of a key."""
        self._known.pop(key.hash, None)

    async def _look_up(self, digest: bytes) -> Key | None:
        """The key in the store. Whoever asks meanwhile shares the next look: a flood of unknown
        keys costs one query at a time."""
        answer = self._asked.get(digest)
        if answer is None:
            answer = self._asked[digest] = asyncio.get_running_loop().create_future()
        if self._looking is None:
            self._looking = asyncio.create_task(self._answer_all())
        return await asyncio.shield(answer)

    async def _answer_all(self) -> None:
        while self._asked:
            asked = {digest: self._asked.pop(digest) for digest in list(self._asked)[:_LOOK_UP]}
            try:
                found = await self._db.aread(keys.find_many, list(asked))
            except Exception as error:
                for answer in asked.values():
                    answer.set_exception(error)
                continue
            for digest, answer in asked.items():
                answer.set_result(found.get(digest))
        self._looking = None

    def _digest(self, credential: str) -> bytes:
        if not credential.startswith("eyJ"):
            return keys.hash_key(credential)
        claims = self._signer.read_token(credential)
        if claims is None:
            raise Unauthenticated("The token is not ours, or it has expired.")
        return bytes.fromhex(claims["key"])

    def _remember(self, digest: bytes, key: Key) -> None:
        if len(self._known) >= _REMEMBER_MOST:
            self._known.clear()
        self._known[digest] = (key, time.monotonic() + _REMEMBER_S)


class AuthMiddleware:
    """Lets a request through with its key in `request.state.key`, or answers 401."""

    def __init__(self, app: ASGIApp, keyring: Keyring) -> None:
        self._app = app
        self._keyring = keyring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._is_public(scope):
            await self._app(scope, receive, send)
            return
        try:
            key = await self._keyring.authenticate(header(scope, b"x-api-key"))
        except (Unauthenticated, StoreError) as error:
            await error_response(error)(scope, receive, send)
            return
        scope.setdefault("state", {})["key"] = key
        await self._app(scope, receive, send)

    @staticmethod
    def _is_public(scope: Scope) -> bool:
        path: str = scope["path"]
        return path in PUBLIC_PATHS or path.startswith(SIGNED_PREFIX)
