"""Keys of one's own owner: a key may list, make and revoke those that see the same work.

No part of the official protocol. `tinkex keys` does the same for all owners on the server's
machine.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.errors import LimitExceeded, NotFound, Unprocessable, json_response
from tinkex.server.gate.auth import credential_of
from tinkex.server.services import Services, caller, owner, services_of
from tinkex.server.submit.bodies import read_json
from tinkex.store import keys
from tinkex.store.keys import Key
from tinkex.types.requests import CreateKeyRequest

_MOST_IN_USE = 100  # of one owner
_REVOKED_KEPT = 100
_NOT_CACHED = {"cache-control": "no-store"}


async def list_keys(request: Request) -> Response:
    """The caller's owner's keys in use, oldest first; never the keys themselves."""
    services, own = services_of(request), caller(request)
    found = await services.db.aread(keys.list_in_use, own.owner)
    shown = [_shown(services, key, own) for key in found]
    return json_response({"owner": own.owner, "keys": shown}, headers=_NOT_CACHED)


async def create_key(request: Request) -> Response:
    """A new key of the caller's owner, shown this once."""
    services, own = services_of(request), caller(request)
    payload = await read_json(request, CreateKeyRequest, services.config.limits)
    name = payload.name.strip()
    if not name or not name.isprintable():
        raise Unprocessable(
            f"The name {payload.name!r} must be 1 to 128 printable characters.", code="bad-key-name"
        )
    if services.keyring.born(credential_of(request.scope)) is not None:
        raise Unprocessable(
            "A token cannot make a key, which would outlive it.",
            hint="Send an API key in X-API-Key.",
            code="key-needed",
        )
    made = keys.new_key()
    added = await services.db.awrite(_add, made, name, own.owner)
    return json_response({"key": made, **_shown(services, added, own)}, headers=_NOT_CACHED)


async def revoke_key(request: Request) -> Response:
    """Revokes a key of the caller's owner; `confirm=true` for the caller's own key."""
    services, own = services_of(request), caller(request)
    key_id = request.path_params["key_id"]
    found = await services.db.aread(keys.list_in_use, owner(request))
    key = next((each for each in found if each.key_id == key_id), None)
    if key is None:
        raise NotFound("There is no such key in use.", code="unknown-key")
    if key.key_id == own.key_id and request.query_params.get("confirm") != "true":
        raise Unprocessable(_warning(len(found)), hint="Add ?confirm=true.", code="revokes-itself")
    await services.db.awrite(keys.revoke, key.key_id)
    services.keyring.forget(key)
    return json_response({})


def _add(conn: Connection, key: str, name: str, whose: str) -> Key:
    """Must run as a write."""
    if len(keys.list_in_use(conn, whose)) >= _MOST_IN_USE:
        raise LimitExceeded(
            f"This owner has {_MOST_IN_USE} keys in use.", hint="Revoke one that is not needed."
        )
    keys.forget_revoked(conn, whose, keep=_REVOKED_KEPT)
    return keys.add(conn, key, name=name, owner=whose)


def _warning(num_in_use: int) -> str:
    if num_in_use > 1:
        return "This is the key of this request: it is refused from then on."
    return (
        "This is the last key of its owner: after it, only 'tinkex keys create' on the server's "
        "machine makes another."
    )


def _shown(services: Services, key: Key, own: Key) -> dict[str, Any]:
    used_at = services.keyring.uses.get(key.key_id, key.used_at)
    return {
        "key_id": key.key_id,
        "name": key.name,
        "tail": key.tail,
        "created": datetime.fromtimestamp(key.created_at, UTC),
        "last_used": None if used_at is None else datetime.fromtimestamp(used_at, UTC),
        "is_this_key": key.key_id == own.key_id,
    }


ROUTES = [
    Route("/keys", list_keys),
    Route("/keys", create_key, methods=["POST"]),
    Route("/keys/{key_id:int}", revoke_key, methods=["DELETE"]),
]
