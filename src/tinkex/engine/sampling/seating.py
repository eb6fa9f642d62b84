"""The sequences with a seat in the batch, which run, and those parked until they get one.

A parked sequence keeps its blocks of the cache and resumes at no cost, unless its blocks are taken
back meanwhile (`KvEviction`). Within a request the oldest sequences run, so none of a request that
is alone is ever preempted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from tinkex.engine.sampling.seat_shares import SeatClaim, SeatShares
from tinkex.engine.sampling.state import RunningSequence

__all__ = ["Seating"]


class Seating:
    """The sequences that have begun and are not done."""

    def __init__(self, num_seats: int) -> None:
        self._num_seats = num_seats
        self._shares = SeatShares(num_seats)
        self.running: list[RunningSequence] = []
        self.parked: list[RunningSequence] = []  # the one parked longest first

    def sequences(self) -> list[RunningSequence]:
        """All sequences."""
        return [*self.running, *self.parked]

    def add(self, sequence: RunningSequence) -> None:
        """Runs a sequence if there is a seat; else parks it until `balance` finds one."""
        has_seat = len(self.running) < self._num_seats
        (self.running if has_seat else self.parked).append(sequence)

    def remove(self, sequence: RunningSequence) -> None:
        """Removes a sequence."""
        (self.running if sequence in self.running else self.parked).remove(sequence)

    def keep(self, is_kept: Callable[[RunningSequence], bool]) -> None:
        """Removes all other sequences."""
        self.running = [each for each in self.running if is_kept(each)]
        self.parked = [each for each in self.parked if is_kept(each)]

    def balance(self) -> None:
        """Gives every request its share of the seats, as far as it has sequences to run."""
        if len(self.running) + len(self.parked) <= self._num_seats:
            self.running += self.parked
            self.parked = []
            return
        claims = self._claims({})
        allotted = self._shares.allot(claims)
        for request_id, claim in claims.items():
            self._park(request_id, claim.held - allotted[request_id])
        for request_id, claim in claims.items():
            self._resume(request_id, allotted[request_id] - claim.held)

    def allowance(self, prompts: dict[str, SeatClaim]) -> dict[str, int]:
        """Returns how many more sequences of each request may begin; `prompts` are the claims of
        sequences that wait for their prompt (held: those of partly computed prompts)."""
        claims = self._claims(prompts)
        self._shares.settle(claims)
        num_parked = Counter(each.job.request.request_id for each in self.parked)
        return {
            request_id: seats - claims[request_id].held - num_parked[request_id]
            for request_id, seats in self._shares.allot(claims).items()
        }

    def charge(self, sequences: Iterable[RunningSequence]) -> None:
        """Charges a written token for each sequence."""
        for sequence in sequences:
            request = sequence.job.request
            self._shares.charge(request.cache_scope, request.request_id)

    def _claims(self, prompts: dict[str, SeatClaim]) -> dict[str, SeatClaim]:
        claims = dict(prompts)
        for sequences, held in ((self.running, 1), (self.parked, 0)):
            for sequence in sequences:
                request = sequence.job.request
                claim = claims.get(request.request_id)
                if claim is None:
                    claim = claims[request.request_id] = SeatClaim(request.cache_scope)
                claim.held += held
                claim.wanted += 1
        return claims

    def _park(self, request_id: str, count: int) -> None:
        """Parks a request's youngest sequences."""
        if count <= 0:
            return
        own = [each for each in self.running if each.job.request.request_id == request_id]
        own.sort(key=lambda each: each.number, reverse=True)
        for sequence in own[:count]:
            self.running.remove(sequence)
            self.parked.append(sequence)

    def _resume(self, request_id: str, count: int) -> None:
        """Resumes a request's oldest parked sequences."""
        if count <= 0:
            return
        own = [each for each in self.parked if each.job.request.request_id == request_id]
        own.sort(key=lambda each: each.number)
        for sequence in own[:count]:
            self.parked.remove(sequence)
            self.running.append(sequence)
