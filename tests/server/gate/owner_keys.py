"""Keys that are their owners' names, for tests of the gate without a store."""

from __future__ import annotations

from tinkex.server.errors import Unauthenticated
from tinkex.store.keys import Key


class OwnerKeys:
    """Every key is known but `unknown`."""

    async def authenticate(self, credential: str) -> Key:
        if credential == "unknown":
            raise Unauthenticated("The API key is not known here.")
        return Key(
            key_id=1,
            owner=credential,
            name="",
            note="",
            hash=b"",
            tail="",
            created_at=0.0,
            revoked_at=None,
            used_at=None,
        )
