"""Signatures of this server: download links that need no key, and short-lived tokens.

HMAC-SHA256 with a secret kept in the store. A token is a JWT, as the protocol wants it; only this
server reads it. Ends are judged by the store's steady clock, so that a jump of the wall clock ends
nothing; the dates clients are shown are the wall clock's.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

import msgspec

from tinkex.store.clock import steady_now

_HEADER = {"alg": "HS256", "typ": "JWT"}


class Signer:
    """Signs and checks with one secret."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    @staticmethod
    def good_for(life_s: float) -> int:
        """The end to sign of something that is good from now on for so long."""
        return int(steady_now() + life_s)

    def sign_download(self, checkpoint_id: str, name: str, expires: int) -> str:
        """The signature of a link to one file, good until `expires` (see `good_for`)."""
        return self._mac(f"download\n{checkpoint_id}\n{name}\n{expires}".encode()).hex()

    def allows_download(self, checkpoint_id: str, name: str, expires: str, given: str) -> bool:
        """Whether the link was signed by us and is still good."""
        is_number = expires.isascii() and expires.isdecimal() and len(expires) <= 12
        if not is_number or int(expires) < steady_now():
            return False
        wanted = self.sign_download(checkpoint_id, name, int(expires))
        return hmac.compare_digest(wanted.encode(), given.encode())

    def make_token(self, claims: dict[str, Any]) -> str:
        """A JWT with these claims; `until` among them is its end (see `good_for`)."""
        signed = b".".join(_b64(msgspec.json.encode(part)) for part in (_HEADER, claims))
        return (signed + b"." + _b64(self._mac(signed))).decode()

    def read_token(self, token: str) -> dict[str, Any] | None:
        """The claims of a token we signed and that is still good."""
        signed, _, signature = token.encode("utf-8", "replace").rpartition(b".")
        if not hmac.compare_digest(_b64(self._mac(signed)), signature):
            return None
        claims = msgspec.json.decode(_unb64(signed.partition(b".")[2]))
        return claims if claims.get("until", 0) > steady_now() else None

    def _mac(self, message: bytes) -> bytes:
        return hmac.new(self._secret, message, hashlib.sha256).digest()


def _b64(raw: bytes) -> bytes:
    return base64.urlsafe_b64encode(raw).rstrip(b"=")


def _unb64(text: bytes) -> bytes:
    return base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4))
