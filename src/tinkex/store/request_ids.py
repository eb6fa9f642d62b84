"""Ids of requests: random, and still known as ours when nothing else is kept of the request.

The last digits follow from the first and the owner. So a poll for a result that was dropped long
ago, row and all, can be told from a poll for something that never was. They protect nothing:
every lookup goes by the owner as well.
"""

from __future__ import annotations

import hashlib
import secrets

__all__ = ["new_request_id", "was_made_for"]

_RANDOM_DIGITS, _CHECK_DIGITS = 24, 8


def new_request_id(owner: str) -> str:
    """A fresh id of 32 hexadecimal digits."""
    random = secrets.token_hex(_RANDOM_DIGITS // 2)
    return random + _check(owner, random)


def was_made_for(owner: str, request_id: str) -> bool:
    """Whether a request of this owner once had the id."""
    random, check = request_id[:_RANDOM_DIGITS], request_id[_RANDOM_DIGITS:]
    return len(random) == _RANDOM_DIGITS and check == _check(owner, random)


def _check(owner: str, random: str) -> str:
    return hashlib.sha256(f"{owner}\n{random}".encode()).hexdigest()[:_CHECK_DIGITS]
