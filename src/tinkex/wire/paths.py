"""`tinker://` paths: `tinker://<run>/<kind>/<name>`.

Strict, because a server turns the parts into folders: what is not plainly a name is refused, and
nothing is unescaped. `ParsedCheckpointTinkerPath` is the lenient reader of what a service wrote.
"""

from __future__ import annotations

import re
from typing import Literal, get_args

import msgspec

from tinkex.errors import InvalidPathError
from tinkex.types.checkpoint import CHECKPOINT_TYPES, PATH_PREFIX, CheckpointType

PathKind = Literal["weights", "sampler_weights", "external_weights"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
_SHOWN_CHARS = 200


class TinkerPath(msgspec.Struct, frozen=True):
    """The path of a checkpoint.

    >>> path = TinkerPath.parse("tinker://abc:train:0/weights/step-100")
    >>> path.name, path.checkpoint_type, path.checkpoint_id
    ('step-100', 'training', 'weights/step-100')

    Raises:
        InvalidPathError: a part is empty, too long, or holds a character that is not allowed.
    """

    run_id: str
    kind: PathKind
    name: str

    def __post_init__(self) -> None:
        if not _is_name(self.run_id, _RUN_ID):
            raise InvalidPathError(f"{_shown(self.run_id)} is not a run id.")
        if self.kind not in get_args(PathKind):
            raise InvalidPathError(f"{_shown(self.kind)} is not a kind of checkpoint.")
        if not _is_name(self.name, _NAME):
            raise InvalidPathError(f"{_shown(self.name)} is not a checkpoint name.")

    @classmethod
    def parse(cls, text: str) -> TinkerPath:
        """Parses a path of exactly three parts.

        Raises:
            InvalidPathError: the text is not such a path.
        """
        parts = text.removeprefix(PATH_PREFIX).split("/", maxsplit=3)
        if not text.startswith(PATH_PREFIX) or len(parts) != 3:
            raise InvalidPathError(f"{_shown(text)} is not a tinker:// path.")
        run_id, kind, name = parts
        return cls(run_id, kind, name)  # type: ignore[arg-type]  # checked in __post_init__

    @property
    def checkpoint_type(self) -> CheckpointType:
        """The checkpoint's type: "training", "sampler" or "external"."""
        return CHECKPOINT_TYPES[self.kind]

    @property
    def checkpoint_id(self) -> str:
        """The path without its run, as REST calls use it."""
        return f"{self.kind}/{self.name}"

    def __str__(self) -> str:
        return f"{PATH_PREFIX}{self.run_id}/{self.kind}/{self.name}"


def is_checkpoint_name(text: str) -> bool:
    """Returns whether a text may be a checkpoint's name, that is the last part of a path."""
    return _is_name(text, _NAME)


def _is_name(text: str, pattern: re.Pattern[str]) -> bool:
    return pattern.fullmatch(text) is not None and ".." not in text


def _shown(text: str) -> str:
    """Returns a text for a message: escaped, and cut if it is long."""
    return repr(text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…")
