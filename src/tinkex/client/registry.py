"""A table shared by the clients of one runtime: limiters, sampling clients, tokenizers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class Registry:
    """Thread-safe table; a missing entry is made once, by the first caller.

    >>> Registry().get_or_create(("limiter", "a"), list)
    []
    """

    def __init__(self) -> None:
        self._entries: dict[Hashable, Any] = {}
        self._lock = threading.Lock()

    def lookup(self, key: Hashable) -> Any | None:
        """The entry under `key`, or None."""
        with self._lock:
            return self._entries.get(key)

    def get_or_create(self, key: Hashable, make: Callable[[], T]) -> T:
        """The entry under `key`, made by `make` if there is none yet."""
        with self._lock:
            if key not in self._entries:
                self._entries[key] = make()
            entry: T = self._entries[key]
            return entry

    def put(self, key: Hashable, value: Any) -> None:
        """Writes the entry under `key`."""
        with self._lock:
            self._entries[key] = value

    def remove(self, key: Hashable) -> None:
        """Forgets the entry under `key`, if there is one."""
        with self._lock:
            self._entries.pop(key, None)

    def keys(self) -> list[Hashable]:
        """The keys of all entries."""
        with self._lock:
            return list(self._entries)
