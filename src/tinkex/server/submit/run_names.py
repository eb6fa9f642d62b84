"""Names and tags of runs: from the metadata that a run is made with, or set later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinkex.server.errors import LimitExceeded
from tinkex.server.gate.limits import check_text
from tinkex.wire.limits import Limits

__all__ = ["check_tags", "name_in", "tags_in"]

_MAX_TAGS = 64


def name_in(metadata: Mapping[str, Any] | None, limits: Limits) -> str | None:
    """The name that metadata give a run, cut to the limit; None if they give none."""
    name = (metadata or {}).get("name")
    return name[: limits.max_name_chars] or None if isinstance(name, str) else None


def tags_in(metadata: Mapping[str, Any] | None, limits: Limits) -> dict[str, str]:
    """The tags that metadata give a run: those under `tags`, or else every text but the name.

    What is above a limit is left out: metadata may hold other things than tags.
    """
    given = metadata or {}
    listed = given.get("tags")
    source = listed if isinstance(listed, Mapping) else given
    found = {
        key: value
        for key, value in source.items()
        if isinstance(value, str)
        and len(key) <= limits.max_name_chars
        and len(value) <= limits.max_text_chars
        and (source is listed or key != "name")
    }
    return dict(list(found.items())[:_MAX_TAGS])


def check_tags(tags: Mapping[str, str], limits: Limits) -> None:
    """Refuses too many tags, or too long ones.

    Raises:
        LimitExceeded: there are too many, or one is too long.
    """
    if len(tags) > _MAX_TAGS:
        raise LimitExceeded(
            f"tags has {len(tags)} entries, above this server's limit of {_MAX_TAGS}.",
            hint="Keep what is longer in user_metadata.",
        )
    for key, value in tags.items():
        check_text("a key of tags", key, limits.max_name_chars)
        check_text(f"tags[{key!r}]", value, limits.max_text_chars)
