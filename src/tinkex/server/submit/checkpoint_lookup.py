"""`tinker://` paths to the checkpoints a caller may read."""

from __future__ import annotations

from tinkex.errors import InvalidPathError
from tinkex.server.errors import NotFound, Unprocessable
from tinkex.server.services import Services
from tinkex.store import checkpoints
from tinkex.store.checkpoints import Checkpoint
from tinkex.wire.paths import TinkerPath


async def find_checkpoint(
    services: Services, owner: str, path: str, *, published: bool = False
) -> Checkpoint:
    """The owner's checkpoint, or with `published` a public one of any owner.

    Raises:
        Unprocessable: the text is no path.
        NotFound: there is no such checkpoint, or another owner has it.
    """
    parsed = parse_path(path)
    found = await services.db.aread(
        checkpoints.find, owner, parsed.run_id, parsed.kind, parsed.name, published=published
    )
    if found is None:
        raise NotFound(f"There is no checkpoint {path[:300]!r}.", code="no-such-checkpoint")
    return found


def parse_path(path: str) -> TinkerPath:
    """The path that a text stands for.

    Raises:
        Unprocessable: it is no such path.
    """
    try:
        return TinkerPath.parse(path)
    except InvalidPathError as error:
        raise Unprocessable(error.message, hint=error.hint, code=error.code) from error
