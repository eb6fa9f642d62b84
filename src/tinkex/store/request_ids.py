"""Ids of requests: unique, and still known as ours when nothing else is kept of the request.

They begin with the time, so that ids made together lie together in an index: of random ones every
row would touch pages of its own, the more the larger the tables are. The last digits follow from
the first and the owner. So a poll for a result that was dropped long ago, row and all, can be told
from a poll for something that never was. They protect nothing: every lookup goes by the owner as
well.
"""

from __future__ import annotations

import hashlib
import secrets
import time

__all__ = ["new_request_id", "was_made_for"]

_TIME_DIGITS, _RANDOM_DIGITS, _CHECK_DIGITS = 12, 12, 8


def new_request_id(owner: str) -> str:
    """A fresh id of 32 hexadecimal digits."""
    milliseconds = time.time_ns() // 1_000_000 % 16**_TIME_DIGITS
    unique = f"{milliseconds:0{_TIME_DIGITS}x}{secrets.token_hex(_RANDOM_DIGITS // 2)}"
    return unique + _check(owner, unique)


def was_made_for(owner: str, request_id: str) -> bool:
    """Whether a request of this owner once had the id."""
    unique, check = request_id[:-_CHECK_DIGITS], request_id[-_CHECK_DIGITS:]
    is_whole = len(unique) == _TIME_DIGITS + _RANDOM_DIGITS
    return is_whole and check == _check(owner, unique)


def _check(owner: str, unique: str) -> str:
    return hashlib.sha256(f"{owner}\n{unique}".encode()).hexdigest()[:_CHECK_DIGITS]
