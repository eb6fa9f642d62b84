"""Signatures of this server: download links that need no key, and short-lived tokens.

HMAC-SHA256 with a secret kept in a file (see `signing_secret`). A token is a JWT, as the protocol
wants it; only this server reads it. Ends are judged by the store's steady clock, so that a jump of
the wall clock ends nothing; the dates clients are shown are the wall clock's.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

import msgspec

from tinkex.server.gate.signing_secret import SecretFile
from tinkex.store.clock import steady_now

_HEADER = {"alg": "HS256", "typ": "JWT"}


class Signer:
    """Signs with the newest secret, and checks with every one that is still accepted."""

    def __init__(self, secrets: SecretFile) -> None:
        self._secrets = secrets

    @staticmethod
    def good_for(life_s: float) -> int:
        """The end to sign of something that is good from now on for so long."""
        return int(steady_now() + life_s)

    def sign_download(self, checkpoint_id: str, name: str, expires: int) -> str:
        """The signature of a link to one file, good until `expires` (see `good_for`)."""
        message = _download_message(checkpoint_id, name, expires)
        return _mac(self._secrets.newest(), message).hex()

    def allows_download(self, checkpoint_id: str, name: str, expires: str, given: str) -> bool:
        """Whether the link was signed by us and is still good."""
        is_number = expires.isascii() and expires.isdecimal() and len(expires) <= 12
        if not is_number or int(expires) < steady_now():
            return False
        message = _download_message(checkpoint_id, name, int(expires))
        wanted = (_mac(secret, message).hex() for secret in self._secrets.accepted())
        return any(hmac.compare_digest(each.encode(), given.encode()) for each in wanted)

    def make_token(self, claims: dict[str, Any]) -> str:
        """A JWT with these claims; `until` among them is its end (see `good_for`)."""
        signed = b".".join(_b64(msgspec.json.encode(part)) for part in (_HEADER, claims))
        return (signed + b"." + _b64(_mac(self._secrets.newest(), signed))).decode()

    def read_token(self, token: str) -> dict[str, Any] | None:
        """The claims of a token we signed and that is still good."""
        signed, _, signature = token.encode("utf-8", "replace").rpartition(b".")
        wanted = (_b64(_mac(secret, signed)) for secret in self._secrets.accepted())
        if not any(hmac.compare_digest(each, signature) for each in wanted):
            return None
        claims = msgspec.json.decode(_unb64(signed.partition(b".")[2]))
        return claims if claims.get("until", 0) > steady_now() else None


def _download_message(checkpoint_id: str, name: str, expires: int) -> bytes:
    return f"download\n{checkpoint_id}\n{name}\n{expires}".encode()


def _mac(secret: bytes, message: bytes) -> bytes:
    return hmac.new(secret, message, hashlib.sha256).digest()


def _b64(raw: bytes) -> bytes:
    return base64.urlsafe_b64encode(raw).rstrip(b"=")


def _unb64(text: bytes) -> bytes:
    return base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4))
