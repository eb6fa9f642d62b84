"""Fair shares of the running batch's seats: between tenants first, then between requests of one.

A seat is a row of the batch: one sequence that gets a token in a step. Tenants have equally many,
except that one which can use fewer leaves the rest to the others; a tenant's seats are split among
its requests by the same rule. What cannot be split evenly goes to the key that was served least, in
tokens, and moves on when another lags by a quantum. Accounts are virtual time: work that joins
starts level with the work that waits, so time without work earns no claim.

Knows counts only, neither sequences nor blocks.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

__all__ = ["QUANTUM", "SeatClaim", "SeatShares"]

QUANTUM = 16
"""Tokens by which a holder of a seat may be ahead. A swap of parked sequences costs nothing, so it
need not be large; where blocks were lost, `KvEviction` sees to longer slices."""


@dataclass(slots=True)
class SeatClaim:
    """The seats that a request has, and the seats it could use."""

    owner: str
    held: int = 0
    wanted: int = 0  # including those it has


@dataclass(slots=True)
class _Account:
    """Tokens served by key, and the level at which a new key starts."""

    served: dict[str, int] = field(default_factory=dict)
    level: int = 0

    def of(self, key: str) -> int:
        return self.served.setdefault(key, self.level)

    def settle(self, present: Collection[str], short: Collection[str]) -> None:
        """Raises keys that get all they can use to the level of the others; drops absent ones."""
        if short:
            self.level = min(self.of(key) for key in short)
        self.served = {
            key: served if key in short else max(served, self.level)
            for key, served in self.served.items()
            if key in present
        }


class SeatShares:
    """Splits a number of seats. Accounts are kept only while there are too few."""

    def __init__(self, num_seats: int) -> None:
        self._num_seats = num_seats
        self._tenants = _Account()
        self._requests: dict[str, _Account] = {}
        self._is_kept = False  # whether there were too few seats when accounts were last settled

    def allot(self, claims: dict[str, SeatClaim]) -> dict[str, int]:
        """Returns the number of seats of every request, by its id."""
        if not self._are_too_few(claims):
            return {request_id: claim.wanted for request_id, claim in claims.items()}
        tenants, requests = _by_tenant(claims)
        seats = _split(self._num_seats, tenants, self._tenants)
        allotted: dict[str, int] = {}
        for owner, own in requests.items():
            allotted |= _split(seats[owner], own, self._account(owner))
        return allotted

    def settle(self, claims: dict[str, SeatClaim]) -> None:
        """Brings the accounts up to date with all present claims; called once per step."""
        self._is_kept = self._are_too_few(claims)
        if not self._is_kept:
            self._tenants, self._requests = _Account(), {}
            return
        tenants, requests = _by_tenant(claims)
        self._tenants.settle(tenants, _short(self._num_seats, tenants))
        seats = _split(self._num_seats, tenants, self._tenants)
        self._requests = {owner: self._account(owner) for owner in tenants}
        for owner, own in requests.items():
            self._requests[owner].settle(own, _short(seats[owner], own))

    def charge(self, owner: str, request_id: str) -> None:
        """Charges a written token to a request."""
        if not self._is_kept:
            return
        for account, key in ((self._tenants, owner), (self._account(owner), request_id)):
            account.served[key] = account.of(key) + 1

    def _are_too_few(self, claims: dict[str, SeatClaim]) -> bool:
        return sum(claim.wanted for claim in claims.values()) > self._num_seats

    def _account(self, owner: str) -> _Account:
        return self._requests.setdefault(owner, _Account())


def _by_tenant(
    claims: dict[str, SeatClaim],
) -> tuple[dict[str, SeatClaim], dict[str, dict[str, SeatClaim]]]:
    """Returns the claims of each tenant, summed and one by one."""
    tenants: dict[str, SeatClaim] = {}
    requests: dict[str, dict[str, SeatClaim]] = {}
    for request_id, claim in claims.items():
        total = tenants.setdefault(claim.owner, SeatClaim(claim.owner))
        total.held += claim.held
        total.wanted += claim.wanted
        requests.setdefault(claim.owner, {})[request_id] = claim
    return tenants, requests


def _short(seats: int, claims: dict[str, SeatClaim]) -> set[str]:
    """Returns the keys that could use more than an even share."""
    even, _ = _level(seats, [claim.wanted for claim in claims.values()])
    return {key for key, claim in claims.items() if claim.wanted > even}


def _split(seats: int, claims: dict[str, SeatClaim], account: _Account) -> dict[str, int]:
    """Returns the same number for every key that can use it; the remainder goes to
    those served least."""
    even, odd = _level(seats, [claim.wanted for claim in claims.values()])
    split = {key: min(claim.wanted, even) for key, claim in claims.items()}
    if not odd:
        return split
    short = [key for key, claim in claims.items() if claim.wanted > even]
    # A holder is counted as if it had a quantum less: seats move in slices.
    short.sort(key=lambda key: account.of(key) - QUANTUM * (claims[key].held > even))
    for key in short[:odd]:
        split[key] += 1
    return split


def _level(seats: int, wanted: list[int]) -> tuple[int, int]:
    """Returns the maximum of each key's seats, and the seats that remain for keys short of it."""
    for i, want in enumerate(sorted(wanted)):
        even, odd = divmod(seats, len(wanted) - i)
        if want > even:
            return even, odd
        seats -= want
    return max(wanted, default=0), 0
