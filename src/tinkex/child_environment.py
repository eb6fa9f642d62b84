"""The environment for a process we start: everything in ours but the secrets.

A child runs compilers, downloads or models and needs no key. A secret is recognised by the
variable's name, or by a password in an address; libraries read too many others for a list of
harmless ones.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

__all__ = ["PROXY_NAMES", "child_environment"]

_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
PROXY_NAMES = (*_PROXIES, *map(str.lower, _PROXIES))
"""For children that download: the address of a proxy may hold its password."""

_SECRET_NAME = re.compile(
    r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|AUTH|DSN|DATABASE_URL)(_|$)",
    re.IGNORECASE,
)
_PASSWORD_IN_ADDRESS = re.compile(r"://[^/\s@]*:[^/\s@]*@")


def child_environment(*, keep: Iterable[str] = (), **changes: str) -> dict[str, str]:
    """Our variables without the secrets, and with `changes`; names that begin with one of `keep`
    are handed on whatever they hold."""
    ours = {**os.environ}
    kept = tuple(keep)
    handed_on = {
        name: value
        for name, value in ours.items()
        if name.startswith(kept) or not _is_secret(name, value)
    }
    return {**handed_on, **changes}


def _is_secret(name: str, value: str) -> bool:
    is_named_so = _SECRET_NAME.search(name) is not None
    return is_named_so or _PASSWORD_IN_ADDRESS.search(value) is not None
