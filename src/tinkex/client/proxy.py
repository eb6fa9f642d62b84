"""The HTTP proxy of a client, in the form in which aiohttp takes it."""

from __future__ import annotations

import base64
from typing import TypedDict

from yarl import URL

__all__ = ["ProxyOptions", "proxy_options"]


class ProxyOptions(TypedDict):
    """Arguments of an aiohttp request."""

    proxy: URL | None
    proxy_headers: dict[str, str] | None


def proxy_options(proxy: str | None) -> ProxyOptions:
    """The proxy's address without its credentials, and those apart: errors name the address."""
    if proxy is None:
        return ProxyOptions(proxy=None, proxy_headers=None)
    url = URL(proxy)
    if url.user is None and url.password is None:
        return ProxyOptions(proxy=url, proxy_headers=None)
    credentials = base64.b64encode(f"{url.user or ''}:{url.password or ''}".encode()).decode()
    # aiohttp sends it on as Proxy-Authorization, with CONNECT or with the request itself.
    headers = {"Authorization": f"Basic {credentials}"}
    return ProxyOptions(proxy=url.with_user(None), proxy_headers=headers)
