"""Which connections a full server keeps: fair shares of `max_connections`, counted in one place.

A connection counts for its client's address until a request on it is authenticated, and for the
owner of that key from then on. Below seven eighths of the maximum nothing is limited. Above that:

- an owner below its fair share (the seven eighths divided by the owners that have connections)
  takes a connection from the owner that has the most: the one idle for longest is closed, else a
  busy one is closed after its answer;
- an owner at its share replaces an idle connection of its own, or is refused;
- the last eighth is a reserve: half of it is for owners below their share, a quarter for owners
  that have no connection yet, and a quarter for connections that are not authenticated yet.

At the maximum a new connection replaces one that is idle and was never authenticated, the oldest of
the address that has the most of those. So neither one key nor a flood without keys can lock other
keys out, and a client that is alone may have seven eighths of all connections, whatever its
address. Every step takes constant time: a refusal must not cost more than the request it refuses.
Runs on the event loop alone; knows nothing of sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinkex.server.errors import Busy, OverCapacity
from tinkex.server.http.connection_groups import Closable, Group, Groups, Slot

__all__ = ["CLAIM_CONNECTION", "FULL", "ConnectionShares", "claim_connection"]

CLAIM_CONNECTION = "claim_connection"
"""In a request's state: the function that counts its connection for an owner."""

FULL = "The server has as many connections as it may."

_LEAST_SPARE = 8


class ConnectionShares:
    """All connections of a server, by owner or address."""

    def __init__(self, most: int) -> None:
        reserve = most // 8
        self._most = most
        self._for_all = most - reserve
        self._below_share = most - (reserve + 1) // 2
        self._for_first = most - (reserve + 3) // 4
        self._most_refused = most + max(_LEAST_SPARE, reserve)
        self._by_owner = Groups()
        self._by_address = Groups()  # those that are idle and have no owner
        self._num_open = 0
        self._num_owned = 0
        self._num_closing = 0

    @property
    def is_flooded(self) -> bool:
        """Whether there are too many connections even to answer that there are too many."""
        return self._num_open > self._most_refused

    def add(self, connection: Closable, address: str) -> tuple[Slot, bool]:
        """The slot of a new connection, and whether it may be used."""
        may_be_used = self._num_open < self._most or self._drop_idle(self._by_address.largest())
        slot = Slot(connection, address)
        self._num_open += 1
        self._join_group(slot)
        return slot, may_be_used

    def remove(self, slot: Slot) -> None:
        """Counts a connection no longer: it is closed."""
        if not slot.is_open:
            return
        self._leave_group(slot)
        slot.is_open = False
        self._num_open -= 1
        self._num_owned -= slot.owner is not None
        self._num_closing -= slot.is_closing

    def set_busy(self, slot: Slot, is_busy: bool) -> None:
        """Notes that a request came on the connection, or that all of them are answered."""
        if slot.is_busy == is_busy or not slot.is_open:
            return
        if slot.owner is None:
            self._leave_group(slot)
            slot.is_busy = is_busy
            self._join_group(slot)
        elif (group := slot.group) is not None:
            del group.place_of(slot)[slot]
            slot.is_busy = is_busy
            group.place_of(slot)[slot] = None

    def claim(self, slot: Slot, owner: str) -> None:
        """Counts a connection for this owner, whose key came with a request on it.

        Raises:
            Busy: the owner has its share of the connections, and none of them is idle.
            OverCapacity: there is no connection left for anyone.
        """
        if not slot.is_open:
            return
        if slot.owner is None:
            if self._num_owned >= self._for_all:
                self._make_room(owner)
            self._num_owned += 1
        # Else a proxy sends requests of several keys over one connection: it counts for the last.
        self._leave_group(slot)
        slot.owner = owner
        self._join_group(slot)

    def _join_group(self, slot: Slot) -> None:
        if slot.owner is not None:
            self._by_owner.add(slot.owner, slot)
        elif not slot.is_busy:
            self._by_address.add(slot.address, slot)

    def _leave_group(self, slot: Slot) -> None:
        if slot.group is not None:
            (self._by_address if slot.owner is None else self._by_owner).remove(slot)

    def _make_room(self, owner: str) -> None:
        """Room for one more connection of the owner; raises if there can be none."""
        mine = self._by_owner.get(owner)
        num_mine = 0 if mine is None else mine.size
        share = max(1, self._for_all // (len(self._by_owner) + (mine is None)))
        if num_mine >= share:
            if not self._drop_idle(mine):
                raise _over_share(num_mine)
            return
        largest = self._by_owner.largest()
        assert largest is not None
        if largest.size > num_mine and self._drop_idle(largest):
            return
        if self._num_owned >= (self._for_first if mine is None else self._below_share):
            raise OverCapacity(FULL) if mine is None else _over_share(num_mine)
        is_made_up_for = self._num_closing > self._num_owned - self._for_all
        if largest.size > share and not is_made_up_for:
            self._close_after_answer(largest)

    def _drop_idle(self, group: Group | None) -> bool:
        """Closes the connection of a group that is idle for longest, if there is one."""
        slot = None if group is None else next(iter(group.idle), None)
        if slot is None:
            return False
        self.remove(slot)
        slot.connection.drop()
        return True

    def _close_after_answer(self, group: Group) -> None:
        if (slot := next(iter(group.busy), None)) is not None:
            del group.busy[slot]
            slot.is_closing = True
            group.closing[slot] = None
            self._num_closing += 1
            slot.connection.close_after_answer()


def claim_connection(state: dict[str, Any], owner: str) -> None:
    """Counts the connection of a request with this state for the owner of its key.

    Raises as `ConnectionShares.claim` does.
    """
    claim: Callable[[str], None] | None = state.get(CLAIM_CONNECTION)
    if claim is not None:
        claim(owner)


def _over_share(num_connections: int) -> Busy:
    return Busy(
        f"You have {num_connections} connections open, none of them is idle, and the server has "
        "no more to give you.",
        hint="Send requests over fewer connections, or wait until some are answered.",
        code="too-many-connections",
    )
