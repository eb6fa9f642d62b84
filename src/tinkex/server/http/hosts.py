"""Which names of this server a browser may have used to get the page.

Against DNS rebinding: a foreign site can have its own name lead to this server's address.
The browser then takes the page for a part of that site and lets the site read what is typed into
it. An address is no such name, so every IP address passes. Requests with a key are not concerned:
the key is in a header that no other site's script has, so clients may use any name or proxy.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from tinkex.server.config import ServerConfig

__all__ = ["AllowedHosts"]


class AllowedHosts:
    """The names of one server: loopback, its own address, its public URL, and `allowed_hosts`."""

    def __init__(self, config: ServerConfig) -> None:
        allowed = [each.lower().rstrip(".") for each in config.allowed_hosts]
        self._takes_all = "*" in allowed
        self._endings = tuple(each for each in allowed if each.startswith("."))
        public = urlsplit(config.public_url or "").hostname
        self._names = {"localhost", config.host.lower(), *allowed, *([public] if public else [])}

    def allows(self, host: str) -> bool:
        """Whether a Host header, maybe with a port, names this server."""
        name = _without_port(host).lower().rstrip(".")
        if self._takes_all or name in self._names or _is_address(name):
            return True
        return name.endswith((".localhost", *self._endings))


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
