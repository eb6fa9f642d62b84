"""An open connection to one server: flags, token, limiter and budgets, and typed requests over it.

Made once per ServiceClient. Knows the handshake and the shape of requests and promises; knows
nothing of sessions, models or samplers.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from tinkex.client.budget import ByteBudget
from tinkex.client.clock import Clock
from tinkex.client.limiter import RateLimiter
from tinkex.client.poller import Announcer, Poller, Promise
from tinkex.client.pools import PoolName
from tinkex.client.queue_watch import QueueObserver
from tinkex.client.retry import NO_RETRIES, RetryPolicy
from tinkex.client.runtime import Runtime
from tinkex.client.transport import JSON, Answer, Call, Transport
from tinkex.config import Config
from tinkex.errors import APIError, NotFoundError, TinkexError, ValidationError
from tinkex.types._extensions import optimizers_of
from tinkex.types.requests import AuthTokenRequest, ClientConfigRequest
from tinkex.types.session import (
    AuthTokenResponse,
    ClientConfig,
    ClientDynamicConfig,
    UntypedPromise,
    WhoamiResponse,
)
from tinkex.version import PROTOCOL_VERSION
from tinkex.wire import json as wire_json

T = TypeVar("T")
log = logging.getLogger("tinkex")

DYNAMIC_CONFIG_TIMEOUT_S = 10.0
MIN_REFRESH_S = 10.0
TOKEN_MARGIN_S = 300.0
TOKEN_RETRY_S = 60.0


class Connection:
    """A server and the client settings it announced."""

    def __init__(self, runtime: Runtime, config: Config) -> None:
        self.runtime = runtime
        self.config = config
        self.transport = Transport(runtime, config)
        self.limiter: RateLimiter = runtime.registry.get_or_create(
            ("limiter", config.tenant_key), lambda: RateLimiter(runtime.clock)
        )
        self.flags = ClientConfig()
        self.dynamic = ClientDynamicConfig()
        self._timers: list[asyncio.Task[Any]] = []
        self._set_budgets()

    def _set_budgets(self) -> None:
        self.response_budget = ByteBudget(self.flags.inflight_response_bytes_semaphore_size)
        self.train_budget = ByteBudget(self.flags.fwdbwd_dispatch_bytes_semaphore_size)
        self.sample_budget = ByteBudget(self.flags.sample_dispatch_bytes_semaphore_size)

    async def open(self) -> Connection:
        """Does the handshake.

        Raises:
            APIError: the server is not there, refuses the key, or does not speak the protocol.
        """
        hello = ClientConfigRequest(sdk_version=PROTOCOL_VERSION)
        self.flags = await self.post("/client/config", hello, ClientConfig, pool="session")
        self._set_budgets()
        if self.flags.pjwt_auth_enabled:
            await self._exchange_token()
            self._repeat(Connection._token_pause_s, Connection._renew_token)
        await self._read_dynamic_config()
        self._repeat(Connection._refresh_pause_s, Connection._refresh_dynamic_config)
        return self

    def require_optimizer(self, name: str) -> None:
        """Returns if the server has this optimizer.

        Raises:
            ValidationError: it has not announced it.
        """
        announced = optimizers_of(self.flags.extensions)
        if name not in announced:
            raise ValidationError(
                f"The optimizer {name!r} cannot be used: this server has announced "
                f"{', '.join(announced)}.",
                hint="Use one of those, or a Tinkex server of this version.",
            )

    def _repeat(
        self,
        pause_s: Callable[[Connection], float],
        act: Callable[[Connection], Awaitable[None]],
    ) -> None:
        timer = _repeat_while_used(weakref.ref(self), self.runtime.clock, pause_s, act)
        self._timers.append(self.runtime.spawn(timer))

    def close(self) -> None:
        """Stops the timers; only to be called on the loop."""
        for timer in self._timers:
            timer.cancel()

    async def _read_dynamic_config(self) -> None:
        hello = ClientConfigRequest(sdk_version=PROTOCOL_VERSION)
        try:
            self.dynamic = await self.post(
                "/client/dynamic_config",
                hello,
                ClientDynamicConfig,
                pool="session",
                timeout_s=DYNAMIC_CONFIG_TIMEOUT_S,
            )
        except NotFoundError:
            self.dynamic = ClientDynamicConfig()

    def _refresh_pause_s(self) -> float:
        return max(MIN_REFRESH_S, float(self.dynamic.refresh_interval_sec))

    async def _refresh_dynamic_config(self) -> None:
        try:
            await self._read_dynamic_config()
        except APIError as error:
            log.debug("dynamic config was not refreshed: %s", error.message)

    async def _exchange_token(self) -> None:
        # The exchange is authorised by the key; meanwhile other requests go on with the old token.
        call = Call(
            method="POST",
            path="/auth/token",
            pool="session",
            body=(wire_json.encode(AuthTokenRequest()),),
            headers={"X-API-Key": self.config.require_api_key()},
        )
        answered = await self.transport.request(call)
        answer = wire_json.decode(answered.body, AuthTokenResponse)
        self.transport.credential = answer.jwt

    def _token_pause_s(self) -> float:
        expires = token_claims(self.transport.credential or "").get("exp")
        now = self.runtime.clock.time()
        left = (float(expires) - now) if isinstance(expires, int | float) else 3600.0
        return max(left - TOKEN_MARGIN_S, TOKEN_RETRY_S)

    async def _renew_token(self) -> None:
        try:
            await self._exchange_token()
        except APIError as error:
            log.warning("the access token was not refreshed: %s", error.message)

    async def post(
        self,
        path: str,
        request: msgspec.Struct,
        type_: type[T],
        *,
        pool: PoolName = "rest",
        policy: RetryPolicy | None = None,
        timeout_s: float | None = None,
        about: Mapping[str, Any] = {},
    ) -> T:
        """The typed answer to a JSON request."""
        call = Call(
            method="POST",
            path=path,
            pool=pool,
            body=(wire_json.encode(request),),
            timeout_s=timeout_s,
            about=about,
        )
        answer = await self.transport.request(call, policy)
        return wire_json.decode(answer.body, type_)

    async def promise(
        self,
        path: str,
        body: Sequence[bytes],
        *,
        request_type: str,
        pool: PoolName = "train",
        content_type: str = JSON,
        headers: Mapping[str, str] = {},
        policy: RetryPolicy | None = None,
        is_protobuf: bool = False,
        about: Mapping[str, Any] = {},
    ) -> tuple[Promise, UntypedPromise]:
        """Hands work to the server; what comes back is the promise of a result."""
        call = Call(
            method="POST",
            path=path,
            pool=pool,
            body=body,
            content_type=content_type,
            headers=headers,
            about=about,
        )
        started = self.runtime.clock.monotonic()
        answer = await self.transport.request(call, policy)
        accepted = wire_json.decode(answer.body, UntypedPromise)
        promise = Promise(
            request_id=accepted.request_id,
            request_type=request_type,
            is_protobuf=is_protobuf,
            submit_roundtrip_s=self.runtime.clock.monotonic() - started,
            about=dict(about),
            tells_queue_state=pool == "train",
        )
        return promise, accepted

    async def fetch(
        self,
        promise: Promise,
        observer: QueueObserver | None = None,
        announcer: Announcer | None = None,
    ) -> Answer:
        """The answer that carries a promise's result, waited for."""
        poller = Poller(
            self.transport,
            promise,
            response_budget=self.response_budget,
            observer=observer,
            announcer=announcer,
        )
        return await poller.result()

    def whoami(self) -> WhoamiResponse:
        """Who the token speaks for.

        Raises:
            ValidationError: the server exchanges no tokens, so it does not say.
        """
        claims = token_claims(self.transport.credential or "")
        if "sub" not in claims:
            raise ValidationError("This server does not report the owner of a key.")
        email = claims.get("email")
        return WhoamiResponse(
            user_urn=str(claims["sub"]),
            org_urn=f"tml:organization:{claims.get('org_id', '')}",
            email=None if email is None else str(email),
        )

    async def cancel(self, request_id: str) -> None:
        """Cancels a sample on the server, if the server supports it."""
        if not self.dynamic.sample_cancel_enabled:
            return
        call = Call(
            method="POST",
            path="/cancel_future",
            pool="sample",
            body=(msgspec.json.encode({"request_id": request_id}),),
            timeout_s=30.0,
        )
        try:
            await self.transport.request(call, NO_RETRIES)
        except TinkexError as error:
            log.debug("cancelling %s failed: %s", request_id, error.message)


async def _repeat_while_used(
    connection: weakref.ref[Connection],
    clock: Clock,
    pause_s: Callable[[Connection], float],
    act: Callable[[Connection], Awaitable[None]],
) -> None:
    """Acts again and again; ends by itself once every client of the connection is gone."""
    while (alive := connection()) is not None:
        pause = pause_s(alive)
        del alive
        await clock.sleep(pause)
        if (alive := connection()) is not None:
            await act(alive)
        del alive


def token_claims(token: str) -> dict[str, Any]:
    """What a JWT says about itself; the signature is the server's business."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        claims = msgspec.json.decode(
            base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        )
    except (ValueError, msgspec.DecodeError):
        return {}
    return claims if isinstance(claims, dict) else {}
