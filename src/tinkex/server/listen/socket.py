"""The socket a server listens on."""

from __future__ import annotations

import errno
import socket

from tinkex.errors import ConfigError

__all__ = ["listen", "url_of"]

_BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """A listening socket at the address; port 0 is any free one.

    Raises:
        ConfigError: nothing can listen there.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named so that asyncio switches off the delay of small packets.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except (OSError, OverflowError, UnicodeError) as error:  # the last two: no port, no name
        listener.close()
        raise _refusal(f"{host}:{port}", error) from error
    return listener


def _refusal(address: str, error: Exception) -> ConfigError:
    number = getattr(error, "errno", None)
    reason = getattr(error, "strerror", None) or error
    if number == errno.EADDRINUSE:
        return ConfigError(
            f"Cannot listen on {address}: another program does.",
            hint="Stop it, or choose another --port (0 = any).",
            code="port-in-use",
        )
    if number == errno.EACCES:
        hint = "Choose a --port of 1024 or above; lower ones need privileges."
    else:
        hint = "Give --host an address of this machine: 127.0.0.1, or 0.0.0.0 for all."
    return ConfigError(f"Cannot listen on {address}: {reason}.", hint=hint, code="bad-address")


def url_of(listener: socket.socket) -> str:
    """Where clients on this machine reach the socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
