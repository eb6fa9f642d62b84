"""The one way of a request into the log and to the scheduler: checked, kept, scheduled, answered
with a request id.

A submit never waits for compute or for another submit. What differs between the kinds of requests
is in the subclasses of `Submission`; a route of a new kind is one line with `submit_route`.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex import crashpoints
from tinkex.server.errors import Unprocessable, json_response
from tinkex.server.services import Services, caller, owner, services_of
from tinkex.types.session import UntypedPromise

__all__ = [
    "ReadSubmission",
    "Submission",
    "accept",
    "check_number",
    "submit_handler",
    "submit_route",
]


class LoggedRequest(Protocol):
    """A request as the log keeps it."""

    @property
    def request_id(self) -> str: ...
    @property
    def owner(self) -> str: ...
    @property
    def state(self) -> str: ...


R = TypeVar("R", bound=LoggedRequest)


class Submission(ABC, Generic[R]):
    """A decoded request that fits the server's limits. `kind` names it in the log."""

    kind: str

    @staticmethod
    @abstractmethod
    def check_room(services: Services, owner: str) -> None:
        """Refuses work above the tenant's or the server's bound. Called before the body is read.

        Raises:
            Busy: too many requests wait already.
        """

    @abstractmethod
    async def keep(self, services: Services, key_id: int) -> tuple[R, bool]:
        """The request's row, and whether it came for the first time; `key_id` is whose usage it
        counts for."""

    @abstractmethod
    def is_scheduled(self, services: Services, row: R) -> bool:
        """Whether the scheduler has it."""

    @abstractmethod
    async def schedule(self, services: Services, row: R) -> None:
        """Hands it to the scheduler."""

    @abstractmethod
    def promise(self, row: R) -> UntypedPromise:
        """The answer."""


ReadSubmission = Callable[[Request], Awaitable[Submission[Any]]]


def submit_route(path: str, read: ReadSubmission, kind: type[Submission[Any]]) -> Route:
    """The route of one kind of request. `read` makes a submission of its body, or refuses it."""
    return Route(path, submit_handler(read, kind), methods=["POST"])


def submit_handler(
    read: ReadSubmission, kind: type[Submission[Any]]
) -> Callable[[Request], Awaitable[Response]]:
    """The handler of such a route."""

    @functools.wraps(read)
    async def answer(request: Request) -> Response:
        services = services_of(request)
        services.check_disk()
        kind.check_room(services, owner(request))
        return await _submit(services, await read(request), caller(request).key_id)

    return answer


async def _submit(services: Services, submission: Submission[R], key_id: int) -> Response:
    return json_response(submission.promise(await accept(services, submission, key_id)))


async def accept(services: Services, submission: Submission[R], key_id: int) -> R:
    """The row of a request that is kept and scheduled now, unless the scheduler has it already.

    One that came before may be in the log and nowhere else: the store had kept it and then failed,
    or its client disconnected at that moment.
    """
    kind = submission.kind
    crashpoints.passing("submit.before", kind)
    row, is_new = await submission.keep(services, key_id)
    if row.state == "queued" and (is_new or not submission.is_scheduled(services, row)):
        crashpoints.passing("submit.kept", kind)
        services.waiters.expect(row.request_id, row.owner, kind)
        if services.tracing is not None:
            services.tracing.submitted(row.request_id, kind)
        await submission.schedule(services, row)
        crashpoints.passing("submit.scheduled", kind)
    return row


def check_number(name: str, value: int, *, bits: int = 31) -> None:
    """Refuses a counter that is negative or does not fit.

    Raises:
        Unprocessable: it does not.
    """
    if not 0 <= value < 2**bits:
        raise Unprocessable(f"{name}={value} must be 0 or more and fit {bits} bits.")
