"""Keeping secrets out of whatever people read: events, log lines, reprs, errors.

Knows what an API key and a URL with a password look like, and under which names secrets travel.
Knows nothing of events.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

_KEY_IN_TEXT: Final = re.compile(
    r"(?<![A-Za-z0-9])(?:tml-[A-Za-z0-9_.-]*[A-Za-z0-9_-]|eyJ[A-Za-z0-9_=-]{5,}(?:\.[A-Za-z0-9_=-]*)*)"
)
_USER_IN_URL: Final = re.compile(r"(?<=://)[^\s/?#]*@")
_SECRET_NAMES: Final = frozenset(
    {"authorization", "proxy_authorization", "cookie", "set_cookie", "token", "credential", "key"}
)
_SECRET_ENDINGS: Final = (
    "api_key",
    "apikey",
    "secret",
    "password",
    "access_token",
    "auth_token",
    "refresh_token",
    "private_key",
)
_PREFIXES: Final = ("tml-", "eyJ")
_SHOWN: Final = 4
_LONG_ENOUGH_TO_SHOW_ITS_END: Final = 16
_MAX_DEPTH: Final = 8


def mask_secret(secret: str) -> str:
    """A secret as it may be shown: its kind and its last four characters.

    >>> mask_secret("tml-0123456789abcdefa1b2")
    'tml-…a1b2'
    >>> mask_secret("short")
    '…'
    """
    _, _, bare = secret.strip().rpartition(" ")  # "Bearer tml-…" is about its last word
    prefix = next((known for known in _PREFIXES if bare.startswith(known)), "")
    long_enough = len(bare) >= _LONG_ENOUGH_TO_SHOW_ITS_END
    return f"{prefix}…{bare[-_SHOWN:] if long_enough else ''}"


def redact(value: Any) -> Any:
    """The same value with every secret in it masked; mappings and sequences are copied.

    >>> redact({"path": "/x", "x-api-key": "anything", "note": "with tml-0123456789abcdefa1b2"})
    {'path': '/x', 'x-api-key': '…', 'note': 'with tml-…a1b2'}
    """
    return _redact(value, depth=0)


def redact_text(text: str) -> str:
    """A text with every API key in it masked, and every user name and password in a URL.

    >>> redact_text("through http://user:password@proxy:8080")
    'through http://…@proxy:8080'
    """
    if "@" in text and "://" in text:
        text = _USER_IN_URL.sub("…@", text)
    if "tml-" not in text and "eyJ" not in text:
        return text
    return _KEY_IN_TEXT.sub(lambda match: mask_secret(match.group()), text)


def is_secret_name(name: object) -> bool:
    """Whether the value under this name is a secret, whatever it looks like."""
    if not isinstance(name, str):
        return False
    plain = name.lower().replace("-", "_")
    return plain in _SECRET_NAMES or plain.endswith(_SECRET_ENDINGS)


class Secret:
    """A text that is shown by `reveal()` only.

    `repr`, `str`, `format` and therefore logs and tracebacks get the masked form. It can be
    pickled, because a client that moves to another process needs its key there.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself."""
        return self._text

    @property
    def sha256(self) -> str:
        """The hexadecimal SHA-256 of the text, which may serve as a key in a table."""
        from hashlib import sha256

        return sha256(self.reveal().encode()).hexdigest()

    def __repr__(self) -> str:
        return f"Secret({mask_secret(self._text)})"

    def __str__(self) -> str:
        return mask_secret(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other.reveal() == self.reveal()

    def __hash__(self) -> int:
        return hash(self.sha256)

    def __reduce__(self) -> tuple[type[Secret], tuple[str]]:
        return Secret, (self.reveal(),)


def _redact(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return redact_text(value)
    if value is None or isinstance(value, int | float):
        return value
    if depth >= _MAX_DEPTH:
        return "…"
    if isinstance(value, Mapping):
        return {
            _redact(name, depth + 1): (
                _mask_all(item, depth + 1) if is_secret_name(name) else _redact(item, depth + 1)
            )
            for name, item in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return _like(value, [_redact(item, depth + 1) for item in value])
    if isinstance(value, BaseException):
        return _without_secrets(value)
    return value


def _mask_all(value: Any, depth: int) -> Any:
    """Masks a value known to be secret; of a container, everything inside."""
    if value is None or isinstance(value, bool | Secret):
        return value
    if isinstance(value, str):
        return mask_secret(value) if value else value
    if depth < _MAX_DEPTH and isinstance(value, Mapping):
        return {name: _mask_all(item, depth + 1) for name, item in value.items()}
    if depth < _MAX_DEPTH and isinstance(value, list | tuple | set | frozenset):
        return _like(value, [_mask_all(item, depth + 1) for item in value])
    return "…"


def _like(original: Any, items: list[Any]) -> Any:
    """The items in the kind of container they came from (a named tuple becomes a plain one)."""
    if isinstance(original, list):
        return items
    return tuple(items) if isinstance(original, tuple) else frozenset(items)


def _without_secrets(error: BaseException) -> BaseException | str:
    """The error itself, or, if its text shows a secret, only that text with the secret masked."""
    text = f"{type(error).__name__}: {error}"
    safe = redact_text(text)
    return error if safe == text else safe
