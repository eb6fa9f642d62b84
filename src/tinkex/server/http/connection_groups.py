"""Connections in groups, one for each owner or address, of which the largest is known at once."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Closable", "Group", "Groups", "Slot"]


class Closable(Protocol):
    """A connection, as far as it matters here."""

    def drop(self) -> None:
        """Closes it now."""
        ...

    def close_after_answer(self) -> None:
        """Closes it once its request is answered."""
        ...


class Slot:
    """One open connection: for whom it counts, and whether an answer is waited for."""

    __slots__ = ("address", "connection", "group", "is_busy", "is_closing", "is_open", "owner")

    def __init__(self, connection: Closable, address: str) -> None:
        self.connection = connection
        self.address = address
        self.owner: str | None = None
        self.group: Group | None = None
        self.is_open = True
        self.is_busy = False
        self.is_closing = False  # after its answer


class Group:
    """The connections of one owner or address: idle for longest first, busy for longest first."""

    __slots__ = ("busy", "closing", "idle", "name", "size")

    def __init__(self, name: str) -> None:
        self.name = name
        self.size = 0
        self.idle: dict[Slot, None] = {}
        self.busy: dict[Slot, None] = {}
        self.closing: dict[Slot, None] = {}

    def place_of(self, slot: Slot) -> dict[Slot, None]:
        """Where a connection in its state belongs."""
        if not slot.is_busy:
            return self.idle
        return self.closing if slot.is_closing else self.busy


class Groups:
    """All groups of one kind."""

    def __init__(self) -> None:
        self._by_name: dict[str, Group] = {}
        self._by_size: dict[int, dict[Group, None]] = {}
        self._largest = 0

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> Group | None:
        """The group of that name, if it has connections."""
        return self._by_name.get(name)

    def largest(self) -> Group | None:
        """The group with the most connections; of equal ones that which came to be so first."""
        return next(iter(self._by_size[self._largest])) if self._by_size else None

    def add(self, name: str, slot: Slot) -> None:
        """Puts a connection into the group of that name."""
        group = self._by_name.get(name)
        if group is None:
            group = self._by_name[name] = Group(name)
        slot.group = group
        group.place_of(slot)[slot] = None
        self._resize(group, group.size + 1)

    def remove(self, slot: Slot) -> None:
        """Takes a connection out of its group."""
        assert slot.group is not None
        group, slot.group = slot.group, None
        del group.place_of(slot)[slot]
        self._resize(group, group.size - 1)

    def _resize(self, group: Group, size: int) -> None:
        if group.size:
            equal = self._by_size[group.size]
            del equal[group]
            if not equal:
                del self._by_size[group.size]
        group.size = size
        if size:
            self._by_size.setdefault(size, {})[group] = None
        else:
            del self._by_name[group.name]
        # A group that was the only largest one is so still, or shares it with those one below.
        if size > self._largest or self._largest not in self._by_size:
            self._largest = size
