"""The event bus: who listens to which events.

Knows handlers and names; knows nothing of HTTP, training, or what the events mean. Every event is
redacted before a handler sees it, and a handler that raises is taken off, reported once through
logging, and never felt by the code that emitted the event.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

from tinkex.errors import ValidationError
from tinkex.telemetry.redaction import redact, redact_text

Handler: TypeAlias = Callable[[str, dict[str, Any], dict[str, Any], Any], object]
"""`fn(event, measurements, metadata, config)`; what it returns is ignored."""

_log: Final = logging.getLogger("tinkex.telemetry")


class _Attached:
    """One handler with the events it is attached to."""

    __slots__ = ("config", "fn", "handler_id", "names", "prefixes")

    def __init__(self, handler_id: str, events: Iterable[str], fn: Handler, config: Any) -> None:
        patterns = [_checked(event) for event in events]
        self.handler_id = handler_id
        self.fn = fn
        self.config = config
        self.names = frozenset(each for each in patterns if not each.endswith("*"))
        self.prefixes = tuple(each[:-1] for each in patterns if each.endswith("*"))

    def wants(self, event: str) -> bool:
        return event in self.names or event.startswith(self.prefixes)


class Bus:
    """A registry of handlers.

    Attaching and detaching replace the whole tuple of handlers under a lock, so that `execute`
    reads it without one: it may run on any thread, and costs one comparison without a handler.

    >>> bus = Bus()
    >>> bus.attach("demo", "tinkex.http.*", lambda event, measured, about, config: print(event))
    >>> bus.execute("tinkex.http.request.start", {}, {"path": "/healthz"})
    tinkex.http.request.start
    >>> bus.detach("demo")
    True
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handlers: tuple[_Attached, ...] = ()

    def __repr__(self) -> str:
        return f"<Bus {len(self._handlers)} handlers>"

    def attach(self, handler_id: str, event: str, fn: Handler, config: Any = None) -> None:
        """Call `fn` at every such event; `"tinkex.http.*"` means all that begin that way.

        Attaching under an id that is taken replaces the old handler, so that running a notebook
        cell twice does not count everything twice.

        Args:
            handler_id: The name to `detach` it by.
            event: An event, or all that begin as what stands before `.*`.
            fn: Called with event, measurements, metadata and `config`.
            config: Handed to `fn` as it is.

        Raises:
            ValidationError: the event is no dotted name, or `*` is anywhere but at its end.
        """
        self.attach_many(handler_id, (event,), fn, config)

    def attach_many(
        self, handler_id: str, events: Iterable[str], fn: Handler, config: Any = None
    ) -> None:
        """Call `fn` at every one of these events; see `attach`.

        Args:
            handler_id: The name to `detach` it by.
            events: The events, each as in `attach`.
            fn: Called with event, measurements, metadata and `config`.
            config: Handed to `fn` as it is.
        """
        new = _Attached(handler_id, (events,) if isinstance(events, str) else events, fn, config)
        with self._lock:
            others = (each for each in self._handlers if each.handler_id != handler_id)
            self._handlers = (*others, new)

    def detach(self, handler_id: str) -> bool:
        """Take a handler off; says whether there was one."""
        with self._lock:
            before = self._handlers
            self._handlers = tuple(each for each in before if each.handler_id != handler_id)
            return len(self._handlers) < len(before)

    def has_handlers(self, event: str) -> bool:
        """Whether there is a handler, so that hot paths gather metadata only if it is read."""
        handlers = self._handlers
        return bool(handlers) and any(each.wants(event) for each in handlers)

    def execute(
        self, event: str, measurements: Mapping[str, Any], metadata: Mapping[str, Any]
    ) -> None:
        """Call every handler of this event; never raises because of one of them.

        Args:
            event: The event's dotted name.
            measurements: Its numbers by name.
            metadata: What else is known of it, by name.
        """
        handlers = self._handlers
        if not handlers:
            return
        listeners = [each for each in handlers if each.wants(event)]
        if not listeners:
            return
        measured, about = redact(measurements), redact(metadata)
        for listener in listeners:
            try:
                listener.fn(event, dict(measured), dict(about), listener.config)
            except Exception as error:
                self._drop(listener, event, error)

    def _drop(self, failed: _Attached, event: str, error: Exception) -> None:
        """Takes a failed handler off and says so; the thread that takes it off reports it."""
        with self._lock:
            if failed not in self._handlers:
                return
            self._handlers = tuple(each for each in self._handlers if each is not failed)
        _log.error(
            "Telemetry handler %r raised at %s and was detached; nothing else was affected.\n%s",
            failed.handler_id,
            event,
            redact_text("".join(traceback.format_exception(error))),
        )


_default: Final = Bus()
# The one module-level object with state, as in `logging`: handlers are attached before any client
# exists and get the events of every client of the process. It opens and starts nothing; an empty
# bus is a lock and an empty tuple. Tests make their own `Bus()`.

attach = _default.attach
attach_many = _default.attach_many
detach = _default.detach
execute = _default.execute
has_handlers = _default.has_handlers


def default_bus() -> Bus:
    """The bus on which all clients of this process report."""
    return _default


def _checked(event: str) -> str:
    parts = event.split(".") if isinstance(event, str) else [""]
    stem = parts[:-1] if parts[-1] == "*" else parts
    if not all(part and "*" not in part and not part.isspace() for part in stem):
        raise ValidationError(
            f"{event!r} is not the name of an event.",
            hint="Write a dotted name such as 'tinkex.http.request.stop', 'tinkex.http.*' or '*'.",
            code="invalid-event",
        )
    return event
