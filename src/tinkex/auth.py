"""Whether this process has an API key, and whether a server accepts it."""

from __future__ import annotations

from tinkex.config import Config
from tinkex.config.credential_command import COMMAND_VARIABLE
from tinkex.errors import ConfigError

__all__ = ["get_tinker_token", "raise_if_tinker_not_accessible", "tinker_has_credentials"]


def get_tinker_token() -> str | None:
    """The API key that a client would use; None if there is none, or if a command prints it.

    Sends no request and runs no command.
    """
    try:
        config = Config()
        is_printed = config.origin("api_key") == f"environment {COMMAND_VARIABLE}"
        return None if is_printed else config.api_key
    except ConfigError:
        return None


def tinker_has_credentials() -> bool:
    """Whether a client would find an API key, or a command that prints one. Sends no request."""
    try:
        return Config().has_api_key
    except ConfigError:
        return False


def raise_if_tinker_not_accessible() -> None:
    """Checks with one request whether the server accepts this key.

    Raises:
        ConfigError: no key is set.
        AuthenticationError: the server does not know the key.
        APIConnectionError: no server answers.
    """
    from tinkex.client.service import ServiceClient

    with ServiceClient() as service:
        service.get_server_capabilities()
