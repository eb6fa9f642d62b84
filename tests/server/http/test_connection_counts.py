"""Shares of the connections, counted without sockets."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from tinkex.server.config import ConnectionBounds
from tinkex.server.errors import Busy, OverCapacity
from tinkex.server.http.connection_groups import Groups, Slot
from tinkex.server.http.connection_shares import ConnectionShares

MOST = 64
FOR_ALL, FOR_SMALL, FOR_FIRST = 56, 60, 62


class Connection:
    """Does what a connection is told, at once."""

    def __init__(self, shares: ConnectionShares, address: str = "a") -> None:
        self.is_open = True
        self.is_last_answer = False
        self._shares = shares
        self.slot, self.may_be_used = shares.add(self, address)

    def ask(self) -> None:
        """A request comes."""
        self._shares.set_busy(self.slot, True)

    def claim(self, owner: str) -> None:
        """The request had a key."""
        self._shares.claim(self.slot, owner)

    def answer(self) -> None:
        """The end of its request."""
        self._shares.set_busy(self.slot, False)
        if self.is_last_answer:
            self.close()

    def drop(self) -> None:
        self.is_open = False

    def close_after_answer(self) -> None:
        assert self.slot.is_busy
        self.is_last_answer = True

    def close(self) -> None:
        """Closed by the client, or after its last answer."""
        self.is_open = False
        self._shares.remove(self.slot)


def busy(shares: ConnectionShares, owner: str, address: str = "a") -> Connection:
    """A connection with a request of this owner on it."""
    connection = Connection(shares, address)
    connection.ask()
    connection.claim(owner)
    return connection


def idle(shares: ConnectionShares, owner: str, address: str = "a") -> Connection:
    connection = busy(shares, owner, address)
    connection.answer()
    return connection


def test_one_key_at_one_address_is_not_limited_below_seven_eighths() -> None:
    most = ConnectionBounds().max_connections
    shares = ConnectionShares(most)
    opened = [Connection(shares, "127.0.0.1") for _ in range(2000)]
    for each in opened:
        each.ask()
        each.claim("me")
    opened += [busy(shares, "me", "127.0.0.1") for _ in range(most * 7 // 8 - 2000)]
    assert all(each.is_open and each.may_be_used for each in opened)
    with pytest.raises(Busy, match="3584 connections"):
        busy(shares, "me", "127.0.0.1")


def test_at_its_share_a_key_replaces_its_own_oldest_idle_connection() -> None:
    shares = ConnectionShares(MOST)
    opened = [idle(shares, "me") for _ in range(FOR_ALL)]
    opened[0].ask()
    idle(shares, "me")
    assert [each.is_open for each in opened[:3]] == [True, False, True]


def test_a_key_below_its_share_takes_an_idle_connection_of_the_largest() -> None:
    shares = ConnectionShares(MOST)
    small = [idle(shares, "small") for _ in range(10)]
    large = [idle(shares, "large") for _ in range(FOR_ALL - 10)]
    new = [idle(shares, "new") for _ in range(15)]
    assert all(each.is_open for each in small + new)
    assert [each.is_open for each in large] == [False] * 15 + [True] * (FOR_ALL - 25)


def test_without_idle_ones_the_reserve_is_given_out_and_made_up_for() -> None:
    shares = ConnectionShares(MOST)
    large = [busy(shares, "large") for _ in range(FOR_ALL)]
    second = [busy(shares, "second") for _ in range(FOR_SMALL - FOR_ALL)]
    assert sum(each.is_last_answer for each in large) == len(second)
    with pytest.raises(Busy, match="4 connections"):
        busy(shares, "second")
    firsts = [busy(shares, f"first {number}") for number in range(FOR_FIRST - FOR_SMALL)]
    with pytest.raises(OverCapacity):
        busy(shares, "one more")
    for each in large:
        each.answer()
    assert sum(not each.is_open for each in large) == len(second) + len(firsts)
    busy(shares, "one more")


def test_no_more_are_closed_than_are_taken_at_once() -> None:
    shares = ConnectionShares(MOST)
    large = [busy(shares, "large") for _ in range(FOR_ALL)]
    for number in range(1000):
        short = busy(shares, f"short {number}")
        short.answer()
        short.close()
    assert sum(each.is_last_answer for each in large) == 1


def test_at_the_maximum_the_address_with_most_connections_without_a_key_loses_one() -> None:
    shares = ConnectionShares(MOST)
    mine = [idle(shares, "me", "flood") for _ in range(10)]
    lone = Connection(shares, "lone")
    flood = [Connection(shares, "flood") for _ in range(10 * MOST)]
    assert lone.is_open
    assert all(each.is_open for each in mine)
    assert all(each.may_be_used for each in flood)
    assert sum(each.is_open for each in flood) == MOST - 11
    assert flood[-1].is_open


def test_without_an_idle_connection_a_new_one_is_refused() -> None:
    shares = ConnectionShares(MOST)
    for _ in range(MOST):
        Connection(shares).ask()
    late = Connection(shares)
    assert not late.may_be_used
    assert not shares.is_flooded
    late.ask()
    while not shares.is_flooded:
        Connection(shares).ask()


def test_a_connection_shared_by_keys_counts_for_the_last() -> None:
    shares = ConnectionShares(MOST)
    proxy = [busy(shares, "a") for _ in range(FOR_ALL)]
    for each in proxy:
        each.claim("b")
        each.claim("b")
    with pytest.raises(Busy):
        busy(shares, "b")
    busy(shares, "a")
    for each in proxy:
        each.close()
    assert not busy(shares, "b").is_last_answer


def test_no_maximum_is_too_small() -> None:
    for most in range(1, 40):
        shares = ConnectionShares(most)
        assert idle(shares, "a").may_be_used
        for owner in ("a", "b", "c"):
            assert idle(shares, owner).slot.owner == owner


def test_a_random_walk_keeps_the_counts() -> None:
    rng = random.Random(7)
    shares = ConnectionShares(MOST)
    opened: list[Connection] = []
    owners: defaultdict[str, set[Slot]]
    addresses: defaultdict[str, set[Slot]]
    for _ in range(20_000):
        opened = [each for each in opened if each.is_open]
        act = rng.random()
        if act < 0.5 or not opened:
            opened.append(Connection(shares, f"address {rng.randrange(4)}"))
        elif act < 0.8:
            _request(rng, rng.choice(opened))
        elif act < 0.95:
            rng.choice(opened).answer()
        else:
            rng.choice(opened).close()
        opened = [each for each in opened if each.is_open]
        owners, addresses = defaultdict(set), defaultdict(set)
        for each in opened:
            if each.slot.owner is not None:
                owners[each.slot.owner].add(each.slot)
            elif not each.slot.is_busy:
                addresses[each.slot.address].add(each.slot)
        _check_groups(shares._by_owner, owners)
        _check_groups(shares._by_address, addresses)
        num_owned = sum(map(len, owners.values()))
        assert num_owned <= FOR_FIRST
        assert (shares._num_open, shares._num_owned) == (len(opened), num_owned)


def _request(rng: random.Random, connection: Connection) -> None:
    if connection.slot.is_busy:
        return
    connection.ask()
    try:
        connection.claim(f"owner {rng.choice([0, 0, 0, 0, 1, 2, 3])}")
    except (Busy, OverCapacity):
        connection.close()


def _check_groups(groups: Groups, expected: dict[str, set[Slot]]) -> None:
    assert len(groups) == len(expected)
    for name, slots in expected.items():
        group = groups.get(name)
        assert group is not None
        assert {*group.idle, *group.busy, *group.closing} == slots
        assert group.size == len(slots)
    largest = groups.largest()
    assert (largest.size if largest else 0) == max(map(len, expected.values()), default=0)
