"""The ASGI application: every route behind the key check, every error typed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Mount, Route

from tinkex.errors import TinkexError
from tinkex.server.auth import AuthMiddleware, Keyring
from tinkex.server.errors import on_http_error, on_tinkex_error, on_unexpected
from tinkex.server.routes import (
    account,
    downloads,
    futures,
    legacy,
    runs,
    sampling,
    service,
    session,
    training,
    weights,
)

API_ROUTES = [
    *service.ROUTES,
    *session.ROUTES,
    *training.ROUTES,
    *weights.ROUTES,
    *sampling.ROUTES,
    *futures.ROUTES,
    *runs.ROUTES,
    *legacy.ROUTES,
    *downloads.ROUTES,
    *account.ROUTES,
]


def build_app(
    keyring: Keyring,
    lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]] | None = None,
) -> Starlette:
    """The application; whoever starts it puts a `Services` into `app.state.services`."""
    return Starlette(
        routes=[Mount("/api/v1", routes=API_ROUTES), Route("/healthz", service.healthz)],
        middleware=[Middleware(AuthMiddleware, keyring=keyring)],
        exception_handlers={
            TinkexError: on_tinkex_error,
            HTTPException: on_http_error,
            Exception: on_unexpected,
        },
        lifespan=lifespan,
    )
