"""What telemetry said while a test ran."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

from tinkex import telemetry

_numbers = count()


class Heard(NamedTuple):
    """One event."""

    event: str
    measured: dict[str, Any]
    about: dict[str, Any]


@contextmanager
def hearing(*events: str) -> Iterator[list[Heard]]:
    """The events, in the order in which they are emitted, as long as the block lasts."""
    heard: list[Heard] = []
    handler_id = f"test-{next(_numbers)}"
    telemetry.attach_many(
        handler_id,
        events,
        lambda event, measured, about, _: heard.append(Heard(event, measured, about)),
    )
    try:
        yield heard
    finally:
        telemetry.detach(handler_id)
