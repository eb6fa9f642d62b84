"""The account: tokens, the caller's key, telemetry, and routes without a meaning on this server."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.errors import NotSupported, json_response
from tinkex.server.gate.auth import credential_of, user_urn
from tinkex.server.services import caller, services_of
from tinkex.server.submit.bodies import read_body
from tinkex.store import keys, quotas
from tinkex.store.clock import steady_now
from tinkex.types.billing import (
    CurrentCheckpointStorageUsageItem,
    CurrentCheckpointStorageUsageResponse,
)
from tinkex.types.session import ApiKeyDetails, ApiKeyInfo, OrgDetails, UserDetails


async def token(request: Request) -> Response:
    """A short-lived token in exchange for the key, or for a token made from it: one chain of tokens
    ends `max_token_life_s` after the key was last shown."""
    services, key = services_of(request), caller(request)
    born = services.keyring.born(credential_of(request.scope))
    now, steady = int(time.time()), steady_now()
    end = (steady if born is None else born) + services.config.max_token_life_s
    life_s = min(services.config.token_life_s, end - steady)
    claims = {
        "sub": user_urn(key.owner),
        "org_id": "tinkex",
        "email": f"{key.owner}@localhost",
        "iat": now,
        "exp": now + int(life_s),  # for the client, which renews it in time
        "until": steady + life_s,  # for us, and so are the rest
        "born": steady if born is None else born,
        "key": key.hash.hex(),
        "key_id": key.key_id,
    }
    return json_response({"jwt": services.signer.make_token(claims)})


async def key_info(request: Request) -> Response:
    """The facts of the caller's key."""
    key = caller(request)
    details = ApiKeyDetails(
        org_details=OrgDetails(name="tinkex"),
        user_details=UserDetails(email=f"{key.owner}@localhost"),
    )
    return json_response(
        ApiKeyInfo(key_id=key.key_id, name=key.name, note=key.note, details=details)
    )


async def revoke_key(request: Request) -> Response:
    """Revokes the caller's key."""
    services, key = services_of(request), caller(request)
    await services.db.awrite(keys.revoke, key.key_id)
    services.keyring.forget(key)
    return json_response({})


async def telemetry(request: Request) -> Response:
    """Taken and thrown away: nothing about clients is collected here."""
    await read_body(request, services_of(request).config.limits)
    return json_response({"status": "accepted"})


async def storage(request: Request) -> Response:
    """How many checkpoints the caller keeps, by project, and how large they are."""
    key = caller(request)
    kept = await services_of(request).db.aread(
        quotas.kept_by_project, key.owner, request.query_params.get("project_id")
    )
    items = [
        CurrentCheckpointStorageUsageItem(
            project_id=each.project_id,
            org_user_urn=user_urn(key.owner),
            checkpoint_count=each.num_checkpoints,
            size_bytes=each.size_bytes,
            size_gigabytes=each.size_bytes / 1e9,
        )
        for each in kept
    ]
    return json_response(CurrentCheckpointStorageUsageResponse(data=items))


async def no_billing(_request: Request) -> Response:
    """There is no money on a server of one's own."""
    raise NotSupported(
        "This server has no billing.",
        hint="GET /usage (tinkex usage) has tokens, engine time and bytes.",
        code="no-billing",
    )


async def no_audit(_request: Request) -> Response:
    """There is no audit log over HTTP."""
    raise NotSupported("This server keeps no audit log.", code="no-audit")


ROUTES = [
    Route("/auth/token", token, methods=["POST"]),
    Route("/auth/apikey/me", key_info),
    Route("/auth/apikey/me", revoke_key, methods=["DELETE"]),
    Route("/telemetry", telemetry, methods=["POST"]),
    Route("/audit", no_audit),
    Route("/billing/usage/checkpoints/current", storage),
    Route("/billing/{rest:path}", no_billing),
]
