"""The operator's token of a server, for the routes that list and drain workers.

A private file, never a row of the database, and separate from the API keys of tenants: a tenant may
neither see what others do on the server nor stop its workers.
"""

from __future__ import annotations

import hmac
from typing import Self

from tinkex.errors import ConfigError
from tinkex.server.config import ServerConfig
from tinkex.server.errors import NotAnOperator
from tinkex.server.gate.signing_secret import SecretFile, ensure_secret_file

__all__ = ["HEADER", "OperatorToken"]

HEADER = b"x-operator-token"


class OperatorToken:
    """Compares what is sent with the file. Without a file every token is refused."""

    def __init__(self, file: SecretFile | None) -> None:
        self._file = file

    @classmethod
    def of(cls, config: ServerConfig) -> Self:
        """The token of a server. A file that the config names is never made here: one that is
        missing was not mounted.

        Raises:
            ConfigError: the file is missing, malformed or not private.
        """
        path, is_named = config.path_of_operator_token, config.operator_token_file is not None
        try:
            if not is_named:
                ensure_secret_file(path)
            return cls(SecretFile(path, may_be_link=is_named))
        except ConfigError as error:
            reason = (
                "it must be a private file (mode 600) of this user, with 64 hexadecimal characters"
                if path.exists()
                else "there is no such file"
            )
            raise ConfigError(
                f"The operator token {path} cannot be used: {reason}.",
                hint=f"Make a new one: (umask 077; openssl rand -hex 32 > {path})",
                code="bad-operator-token",
            ) from error

    def check(self, sent: str) -> None:
        """Returns if it is the token, or one that was rotated out and has not ended.

        Raises:
            NotAnOperator: it is missing or wrong.
        """
        if not sent:
            raise NotAnOperator("No operator token was sent.")
        try:
            value = bytes.fromhex(sent)
        except ValueError:
            value = b""
        accepted = [] if self._file is None else self._file.accepted()
        if not any(hmac.compare_digest(value, each) for each in accepted):
            raise NotAnOperator("The operator token is not the one of this server.")
