"""The package's version, and the protocol version it speaks."""

from __future__ import annotations

__version__ = "0.1.0"

PROTOCOL_VERSION = "0.36.0"
"""The official client's release whose protocol we speak; servers require it at the handshake."""
