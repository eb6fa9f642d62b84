"""Server-sent events of one answer, as they come. Knows aiohttp; nothing of what they say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import aiohttp

from tinkex.client.transport import Answer, Call, Transport
from tinkex.errors import APIConnectionError, APITimeoutError

__all__ = ["read_events"]

SILENCE_S = 30.0
"""A server says something every few seconds; after so long without a byte it is out of reach."""


async def read_events(transport: Transport, call: Call) -> AsyncGenerator[tuple[str, bytes], None]:
    """The name and the data of each event until the answer ends; an event has one line of data.

    Raises:
        APIStatusError: the server answered with an error.
        APIConnectionError: the connection broke, or was silent for too long.
    """
    timeout = aiohttp.ClientTimeout(
        total=None, sock_connect=transport.config.connect_timeout_s, sock_read=SILENCE_S
    )
    try:
        async with transport.open(call, timeout) as response:
            if response.status != 200:
                body = await response.read()
                answer = Answer(status=response.status, headers=response.headers, body=body)
                raise transport.status_error(answer, call)
            name = ""
            async for line in response.content:
                field, _, value = line.rstrip(b"\r\n").partition(b": ")
                if field == b"event":
                    name = value.decode("utf-8", "replace")
                elif field == b"data":
                    yield name, value
    except (TimeoutError, aiohttp.ServerTimeoutError) as error:
        raise APITimeoutError(
            f"{call.method} {call.path} was silent for {SILENCE_S:g} s.",
            transport.error_request(call),
        ) from error
    except (aiohttp.ClientError, OSError, EOFError, asyncio.IncompleteReadError) as error:
        raise APIConnectionError(
            f"{call.method} {call.path} was cut: {str(error) or type(error).__name__}.",
            transport.error_request(call),
        ) from error
