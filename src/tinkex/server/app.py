"""The ASGI application: every route behind the key check, every error typed.

Routes are in `routes`, one module per subject; each lists its own in `ROUTES`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Mount, Route

from tinkex.errors import TinkexError
from tinkex.files.errors import StorageError
from tinkex.server.errors import on_http_error, on_storage_error, on_tinkex_error, on_unexpected
from tinkex.server.gate.admission import Admission
from tinkex.server.gate.auth import Keyring
from tinkex.server.gate.gate import Gate
from tinkex.server.gate.operator_token import OperatorToken
from tinkex.server.gate.overload import Overload
from tinkex.server.http.route_table import RouteTable
from tinkex.server.openai.routes import openai_routes
from tinkex.server.routes import (
    account,
    account_usage,
    cancelling,
    custom_losses,
    downloads,
    futures,
    keys,
    legacy,
    live,
    merged_models,
    operator,
    page,
    run_metrics,
    runs,
    sample_stream,
    sampling,
    service,
    session,
    status,
    training,
    weights,
)
from tinkex.wire.limits import DEFAULT_LIMITS

API_ROUTES = [
    *service.ROUTES,
    *session.ROUTES,
    *training.ROUTES,
    *custom_losses.ROUTES,
    *weights.ROUTES,
    *sampling.ROUTES,
    *sample_stream.ROUTES,
    *futures.ROUTES,
    *runs.ROUTES,
    *run_metrics.ROUTES,
    *account_usage.ROUTES,
    *live.ROUTES,
    *legacy.ROUTES,
    *merged_models.ROUTES,
    *downloads.ROUTES,
    *account.ROUTES,
    *keys.ROUTES,
    *operator.ROUTES,
    *status.ROUTES,
    *cancelling.ROUTES,
]


def build_app(
    keyring: Keyring,
    admission: Admission | None = None,
    lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]] | None = None,
    overload: Overload | None = None,
    operator_token: OperatorToken | None = None,
) -> Starlette:
    """The application; its starter sets `app.state.services` to a `Services`."""
    admission = admission or Admission(DEFAULT_LIMITS)
    return Starlette(
        routes=[
            RouteTable("/api/v1", API_ROUTES),
            Mount("/api/v1", routes=API_ROUTES),
            *openai_routes(),
            Route("/healthz", service.healthz),
            *page.ROUTES,
        ],
        middleware=[
            Middleware(
                Gate,
                keyring=keyring,
                admission=admission,
                overload=overload,
                operator_token=operator_token,
            )
        ],
        exception_handlers={
            TinkexError: on_tinkex_error,
            StorageError: on_storage_error,
            HTTPException: on_http_error,
            Exception: on_unexpected,
        },
        lifespan=lifespan,
    )
