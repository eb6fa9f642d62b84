"""Ids of requests: unique, and recognizable after the request's rows were deleted.

They begin with the time, so that ids made together are close together in an index; with random ids
every row would touch other pages. The last digits are derived from the first ones and the owner:
this distinguishes a poll for a result that was dropped from one for an id that never existed. They
protect nothing: every lookup also filters by the owner.
"""

from __future__ import annotations

import hashlib
import secrets
import time

__all__ = ["new_request_id", "was_made_for"]

_TIME_DIGITS, _RANDOM_DIGITS, _CHECK_DIGITS = 12, 12, 8


def new_request_id(owner: str) -> str:
    """Returns a new id of 32 hexadecimal digits."""
    milliseconds = time.time_ns() // 1_000_000 % 16**_TIME_DIGITS
    unique = f"{milliseconds:0{_TIME_DIGITS}x}{secrets.token_hex(_RANDOM_DIGITS // 2)}"
    return unique + _check(owner, unique)


def was_made_for(owner: str, request_id: str) -> bool:
    """Returns whether a request of this owner once had the id."""
    unique, check = request_id[:-_CHECK_DIGITS], request_id[-_CHECK_DIGITS:]
    is_whole = len(unique) == _TIME_DIGITS + _RANDOM_DIGITS
    return is_whole and check == _check(owner, unique)


def _check(owner: str, unique: str) -> str:
    return hashlib.sha256(f"{owner}\n{unique}".encode()).hexdigest()[:_CHECK_DIGITS]
