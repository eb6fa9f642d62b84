"""The root of the error tree, and the errors about your input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

Blame = Literal["user", "server", "network", "unknown"]


class TinkexError(Exception):
    """Anything that went wrong in Tinkex."""

    type: ClassVar[str] = "error"
    code: str = "error"
    blame: Blame = "unknown"
    retryable: bool = False
    default_hint: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        """Names the public module in tracebacks and pickles, whichever module here defines it."""
        if cls.__module__.startswith("tinkex.errors."):
            cls.__module__ = "tinkex.errors"

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        code: str | None = None,
        request_id: str | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = self.default_hint if hint is None else hint
        self.request_id = request_id
        if code is not None:
            self.code = code
        if retryable is not None:
            self.retryable = retryable

    def __str__(self) -> str:
        parts = [self.message]
        if self.hint:
            parts.append(self.hint)
        tags = [f"code: {self.code}"]
        if self.request_id:
            tags.append(f"request: {self.request_id}")
        return "\n  ".join(parts) + f"   [{' · '.join(tags)}]"

    def __reduce__(self) -> tuple[Callable[..., TinkexError], tuple[Any, ...]]:
        notes = getattr(self, "__notes__", None)
        state = {key: value for key, value in self.__dict__.items() if key != "__notes__"}
        return _rebuild, (self.__class__, self.message, state, notes)


TinkexError.__module__ = "tinkex.errors"  # as `__init_subclass__` does for the others


def _rebuild(
    cls: type[TinkexError], message: str, state: dict[str, Any], notes: list[str] | None
) -> TinkexError:
    """An error as it was before pickling, for any signature of its constructor."""
    error = cls.__new__(cls, message)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    for note in notes or ():
        error.add_note(note)
    return error


class ExperimentalWarning(FutureWarning):
    """Something may change or go in any release. Nothing in Tinkex warns of it at present."""


class ValidationError(TinkexError, ValueError):
    """Your input cannot be used; nothing was sent."""

    type = "validation"
    code = "invalid-input"
    blame = "user"


class ConfigError(ValidationError):
    """A setting is missing or malformed."""

    code = "invalid-config"


class InvalidPathError(ValidationError):
    """A text is not a well-formed `tinker://` path."""

    code = "invalid-path"
    default_hint = (
        "Write tinker://<run>/<weights|sampler_weights|external_weights>/<name>; "
        "parts use letters, digits, '.', '_', '-' (and ':' in run ids) and start with a letter "
        "or digit."
    )


class TokenizerError(ValidationError):
    """A tokenizer could not be found or loaded."""

    code = "tokenizer-unavailable"
