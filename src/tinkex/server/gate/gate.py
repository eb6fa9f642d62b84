"""The gate before every route. Four questions, in this order, each with its own refusal:

1. Whose key is it (`auth`)? Else 401. Public paths and signed links pass without one. Paths for
   operators need the operator's token instead (`operator_token`), and pass with it.
2. May its owner have this connection (`connection_shares`)? Else 429 or 503, and it is closed.
3. Is the owner within its limits (`admission`)? Else 429.
4. If it is a submission: can the server take it (`overload`)? Else 429, before its body is read.

What passes holds a ticket until it is answered. Runs on the event loop only.
"""

from __future__ import annotations

import random
from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tinkex.server.errors import (
    Busy,
    OverCapacity,
    Unauthenticated,
    closing_response,
    error_response,
)
from tinkex.server.gate.admission import CURRENT_TICKET, Admission, Ticket
from tinkex.server.gate.auth import credential_of, is_for_operators, is_public
from tinkex.server.gate.operator_token import HEADER, OperatorToken
from tinkex.server.gate.overload import REFUSALS, SUBMISSIONS, Overload
from tinkex.server.http.connection_shares import claim_connection
from tinkex.server.http.headers import header
from tinkex.server.http.openai_paths import SAMPLING_PATHS
from tinkex.store import StoreError
from tinkex.store.keys import Key

__all__ = ["Gate"]

_WITHOUT_BODY = frozenset({"GET", "HEAD", "DELETE"})


class Keys(Protocol):
    """Knows whose key it is; `auth.Keyring` does."""

    async def authenticate(self, credential: str) -> Key: ...


class Gate:
    """Lets a request through with its key in `request.state.key` and its ticket beside it."""

    def __init__(
        self,
        app: ASGIApp,
        keyring: Keys,
        admission: Admission,
        overload: Overload | None = None,
        operator_token: OperatorToken | None = None,  # without one, operators are refused
    ) -> None:
        self._app = app
        self._keyring = keyring
        self._admission = admission
        self._overload = overload
        self._operator_token = operator_token or OperatorToken(None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or is_public(scope["path"]):
            await self._app(scope, receive, send)
            return
        if is_for_operators(scope["path"]):
            await self._pass_operator(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        try:
            key = state["key"] = await self._keyring.authenticate(credential_of(scope))
        except (Unauthenticated, StoreError) as error:
            await error_response(error)(scope, receive, send)
            return
        try:
            claim_connection(state, key.owner)
        except (Busy, OverCapacity) as error:
            await closing_response(error)(scope, receive, send)
            return
        try:
            ticket = state["ticket"] = self._admission.enter(key.owner)
        except Busy as error:
            await error_response(error)(scope, receive, send)
            return
        try:
            await self._submit_or_pass(scope, receive, send, key.owner, ticket)
        finally:
            ticket.leave()

    async def _pass_operator(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._operator_token.check(header(scope, HEADER))
        except Unauthenticated as error:
            await error_response(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _submit_or_pass(
        self, scope: Scope, receive: Receive, send: Send, owner: str, ticket: Ticket
    ) -> None:
        path = scope["path"]
        is_held = path in SAMPLING_PATHS
        if self._overload is None or not (is_held or path in SUBMISSIONS):
            await self._pass(scope, receive, send, ticket)
            return
        if not self._overload.accepts(owner):
            for message in random.choice(REFUSALS):  # noqa: S311  no secret: it spreads the retries
                await send(message)
            return
        if is_held:  # it is answered with its result, so its time says nothing of the server's
            await self._pass(scope, receive, send, ticket)
            return
        request = self._overload.in_flight(owner, receive, send)
        try:
            await self._pass(scope, request.receive, request.send, ticket)
        finally:
            request.end()

    async def _pass(self, scope: Scope, receive: Receive, send: Send, ticket: Ticket) -> None:
        CURRENT_TICKET.set(ticket)

        async def send_out(message: Message) -> None:
            ticket.release_slot()  # the work is done; the client reads at its own speed
            await send(message)

        if scope["method"] in _WITHOUT_BODY:  # others acquire it once their body has arrived
            await ticket.acquire_slot()
        await self._app(scope, receive, send_out)
