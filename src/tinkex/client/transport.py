"""One HTTP request at a time: sends it, retries it by a policy, emits its events, types its errors.

Knows aiohttp and the protocol's headers; knows nothing of sessions, models or futures. The API key
goes into one header of requests to the configured origin and nowhere else.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from http import HTTPStatus
from typing import Any

import aiohttp
import msgspec
from yarl import URL

from tinkex.client.body import PartsPayload
from tinkex.client.outage import Outage
from tinkex.client.pools import PoolName
from tinkex.client.proxy import proxy_options
from tinkex.client.request_events import Attempts, Observation, is_observed, observed
from tinkex.client.retry import (
    MAX_EMPTY_400,
    RetryPolicy,
    backoff_s,
    retry_after_s,
    should_retry,
)
from tinkex.client.runtime import Runtime
from tinkex.client.tracing import trace_headers
from tinkex.config import Config
from tinkex.errors import (
    APIConnectionError,
    APIResponseValidationError,
    APIStatusError,
    APITimeoutError,
    ErrorRequest,
    ErrorResponse,
    TinkexError,
    status_error_class,
)
from tinkex.telemetry.redaction import is_secret_name, redact_text
from tinkex.version import __version__

PROTOBUF = "application/x-protobuf"
JSON = "application/json"
API_PREFIX = "/api/v1"
MAX_REDIRECTS = 5
MAX_URLS = 256
SLOWEST_ANSWER_FACTOR = 30
ERROR_TEXT_LIMIT = 500
ERROR_BYTES_LIMIT = 1 << 16
_PROXY_HINT = "Set TINKEX_PROXY to http://user:password@host:port, as the proxy expects them."


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request as the caller means it."""

    method: str
    path: str
    pool: PoolName = "rest"
    body: Sequence[bytes] | None = None
    content_type: str = JSON
    accept: str = JSON
    headers: Mapping[str, str] = {}
    params: Mapping[str, str] = {}
    timeout_s: float | None = None
    about: Mapping[str, Any] = {}
    """session_id, model_id, seq_id, request_id where known: telemetry only."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One complete HTTP answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_ok(self) -> bool:
        """Whether the status is a success."""
        return 200 <= self.status < 300

    @property
    def is_protobuf(self) -> bool:
        """Whether the body is protobuf."""
        return PROTOBUF in self.headers.get("content-type", "")


class Transport:
    """Requests to one server with one key, over a runtime's pools."""

    def __init__(self, runtime: Runtime, config: Config) -> None:
        self.runtime = runtime
        self.config = config
        self.credential: str | None = None
        """Sent in place of the API key once the server has exchanged it for a token."""
        self._base_url = config.normalized_base_url
        self.outage = Outage(runtime.clock, self._base_url)
        self._fixed_headers = {**config.default_headers, "User-Agent": f"tinkex/{__version__}"}
        self._api_key = config.api_key
        self._secret_headers = tuple(
            value for name, value in config.default_headers.items() if is_secret_name(name)
        )
        self.proxy_options = proxy_options(config.proxy)
        self._timeouts: dict[float, aiohttp.ClientTimeout] = {}
        self._urls: dict[str, URL] = {}
        self.policy = RetryPolicy(
            budget_s=config.retry_budget_s, base_s=config.retry_base_s, max_s=config.retry_max_s
        )

    async def request(self, call: Call, policy: RetryPolicy | None = None) -> Answer:
        """The successful answer to a call, retried by the policy (the config's by default).

        Raises:
            APIStatusError, APIConnectionError: the final failure.
        """
        if not is_observed():
            return await self._with_retries(call, policy or self.policy, Observation())
        async with observed(self.runtime.clock, self.about(call)) as observation:
            return await self._with_retries(call, policy or self.policy, observation)

    async def _with_retries(
        self, call: Call, policy: RetryPolicy, observation: Observation
    ) -> Answer:
        clock, attempts = self.runtime.clock, Attempts(self.runtime.clock, call.path)
        started, retries = clock.monotonic(), 0
        idempotency_key = f"tinkex-{uuid.uuid4()}"
        while True:
            try:
                attempts.begin()
                answer = await self.attempt(call, idempotency_key, retries)
                observation.status = answer.status
                if answer.is_ok:
                    attempts.stop()
                    return answer
                error: TinkexError = self.status_error(answer, call)
                may_retry = should_retry(answer.status, answer.headers, answer.body)
                if answer.status == 400 and retries >= MAX_EMPTY_400:
                    may_retry = False
                server_wait_s = backoff_s(retry_after_s(answer.headers, clock.time()))
            except APIConnectionError as failure:
                error, may_retry, server_wait_s = failure, True, None
            if not (may_retry and policy.allows(retries, clock.monotonic() - started)):
                attempts.fail(error)
                raise error
            if isinstance(error, APIConnectionError):
                self.outage.note_retry(error)
            delay = policy.delay_s(retries, server_wait_s, clock.random())
            attempts.retry(error, delay)
            retries += 1
            observation.retry_count = retries
            await clock.sleep(delay)

    async def attempt(self, call: Call, idempotency_key: str = "", retry_count: int = 0) -> Answer:
        """The server's answer to one try, of any status.

        Raises:
            APIConnectionError: no complete answer came.
        """
        headers = self._headers(call, idempotency_key, retry_count)
        url = self.url(call.path, call.params)
        body = _body(call)
        for _ in range(MAX_REDIRECTS):
            answer, location = await self._exchange(call, url, headers, body)
            self.outage.note_answer()
            if location is None:
                return answer
            url, headers = self._redirect(call, url, location, headers)
        raise APIResponseValidationError(f"{call.path} redirects more than {MAX_REDIRECTS} times.")

    async def _exchange(
        self, call: Call, url: URL, headers: Mapping[str, str], body: bytes | PartsPayload | None
    ) -> tuple[Answer, str | None]:
        pool = self.runtime.pools.get(call.pool)
        timeout_s = call.timeout_s or self.config.timeout_s
        try:
            async with pool.request(
                call.method,
                url,
                data=body,
                headers=headers,
                allow_redirects=False,
                timeout=self.timeout(timeout_s),
                **self.proxy_options,
            ) as response:
                content = await response.read()
                location = _redirect_target(call.method, response)
                return (
                    Answer(status=response.status, headers=response.headers, body=content),
                    location,
                )
        except (TimeoutError, aiohttp.ServerTimeoutError) as error:
            raise APITimeoutError(
                f"{call.method} {call.path} had no answer within {timeout_s:g} s.",
                self.error_request(call),
            ) from error
        except (aiohttp.ClientError, OSError, EOFError, asyncio.IncompleteReadError) as error:
            raise APIConnectionError(
                f"{call.method} {call.path} got no complete answer from "
                f"{self._base_url}: {_reason(error)}.",
                self.error_request(call),
            ) from error

    def open(
        self, call: Call, timeout: aiohttp.ClientTimeout
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """The answer to one try, to be read as it comes; a redirect is not followed."""
        return self.runtime.pools.get(call.pool).request(
            call.method,
            self.url(call.path, call.params),
            data=_body(call),
            headers=self._headers(call, "", 0),
            allow_redirects=False,
            timeout=timeout,
            **self.proxy_options,
        )

    def timeout(self, timeout_s: float) -> aiohttp.ClientTimeout:
        """Silence is limited, not length: a slow answer that keeps coming is let through."""
        made = self._timeouts.get(timeout_s)
        if made is None:
            made = self._timeouts[timeout_s] = aiohttp.ClientTimeout(
                total=timeout_s * SLOWEST_ANSWER_FACTOR,
                sock_connect=self.config.connect_timeout_s,
                sock_read=timeout_s,
            )
        return made

    def url(self, path: str, params: Mapping[str, str] = {}) -> URL:
        """The full address of an API path; run and checkpoint ids stay unescaped."""
        whole = self._urls.get(path)
        if whole is None:
            whole = URL(self._base_url + API_PREFIX + path, encoded=True)
            if len(self._urls) < MAX_URLS:
                self._urls[path] = whole
        return whole.with_query(params) if params else whole

    def _redirect(
        self, call: Call, url: URL, location: str, headers: Mapping[str, str]
    ) -> tuple[URL, dict[str, str]]:
        """The next address of a redirect; another origin gets no credentials and no body.

        Raises:
            APIResponseValidationError: the body of a request would leave the server's origin.
        """
        target = url.join(URL(location, encoded=True))
        if target.origin() == url.origin():
            return target, dict(headers)
        if call.method != "GET":
            raise APIResponseValidationError(
                f"{call.method} {call.path} was redirected to {target.host}, another origin; "
                "nothing was sent there."
            )
        return target, {"User-Agent": headers["User-Agent"], "Accept": headers["Accept"]}

    def _headers(self, call: Call, idempotency_key: str, retry_count: int) -> dict[str, str]:
        headers = {
            **self._fixed_headers,
            "X-API-Key": self.credential or self._api_key or self.config.require_api_key(),
            "Accept": call.accept,
            **call.headers,
            **trace_headers(),
        }
        if call.body is not None:
            headers["Content-Type"] = call.content_type
        if call.method != "GET" and idempotency_key:
            headers["X-Idempotency-Key"] = idempotency_key
        if retry_count:
            headers["X-Stainless-Retry-Count"] = str(retry_count)
        return headers

    def error_request(self, call: Call) -> ErrorRequest:
        """The request that an error speaks of: no header, no body, and no secret in its address."""
        url = redact_text(str(self.url(call.path, call.params)))
        return ErrorRequest(call.method, self._scrub(url))

    def status_error(self, answer: Answer, call: Call) -> APIStatusError:
        """The typed error for an answer with an error status."""
        # Cut only after scrubbing: of a key on the edge, a part would be left.
        text = self._scrub(answer.body[:ERROR_BYTES_LIMIT].decode("utf-8", "replace"))
        text = text[: 4 * ERROR_TEXT_LIMIT]
        detail, code, hint, request_id = _error_fields(text)
        headers = {name: self._scrub(value) for name, value in answer.headers.items()}
        sender = "server"
        if answer.status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
            sender, hint = "proxy", _PROXY_HINT
        return status_error_class(answer.status)(
            f"The {sender} answered {answer.status}: {detail}",
            ErrorResponse(answer.status, text, headers, self.error_request(call)),
            text,
            code=code,
            hint=hint,
            request_id=request_id,
            retry_after_s=retry_after_s(answer.headers, self.runtime.clock.time()),
        )

    def _scrub(self, text: str) -> str:
        """A server may echo what it was sent; no secret of it must travel into errors and logs."""
        for secret in (self._api_key, self.credential, *self._secret_headers):
            if secret:
                text = text.replace(secret, "<key>")
        return text

    def about(self, call: Call) -> dict[str, Any]:
        """The telemetry event of a request: never the key, never the body."""
        return {
            "method": call.method,
            "path": call.path,
            "pool": call.pool,
            "base_url": self._base_url,
            "user_metadata": dict(self.config.user_metadata),
            **call.about,
        }


def _body(call: Call) -> bytes | PartsPayload | None:
    if call.body is None:
        return None
    if len(call.body) == 1:
        return call.body[0]
    return PartsPayload(call.body, call.content_type)


def _redirect_target(method: str, response: aiohttp.ClientResponse) -> str | None:
    """Where an answer sends us; a POST is only ever repeated where the status says so."""
    follows = (301, 302, 303, 307, 308) if method == "GET" else (307, 308)
    return response.headers.get("location") if response.status in follows else None


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _error_fields(text: str) -> tuple[str, str | None, str | None, str | None]:
    """Message, code, hint and request id of an error body, JSON or not."""
    try:
        fields = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return _first_words(text), None, None, None
    if not isinstance(fields, dict):
        return _first_words(text), None, None, None
    detail = fields.get("detail") or fields.get("message") or fields.get("error") or text
    if not isinstance(detail, str):
        detail = msgspec.json.encode(detail).decode()
    return (
        detail[:ERROR_TEXT_LIMIT],
        _text_or_none(fields.get("code")),
        _text_or_none(fields.get("hint")),
        _text_or_none(fields.get("request_id")),
    )


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _first_words(text: str) -> str:
    if text.lstrip().startswith("<"):
        return "an HTML page, probably from a proxy in between."
    return " ".join(text.split())[:ERROR_TEXT_LIMIT] or "nothing more."
