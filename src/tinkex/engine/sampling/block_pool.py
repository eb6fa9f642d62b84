"""Who has which block of the cache, and which blocks hold the beginning of a prompt seen before.

Knows numbers of blocks only. A block that is full can be given a key, made of everything up to its
end; when its last owner lets go it stays where it is, found by its key, until the room is needed.
The one that was idle for longest goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from hashlib import blake2b

import numpy as np

__all__ = ["BlockPool", "prefix_keys"]


def prefix_keys(root: bytes, tokens: np.ndarray, block_tokens: int) -> list[bytes]:
    """A key for every full block of the tokens; `root` says what else the numbers depend on."""
    keys = []
    for end in range(block_tokens, len(tokens) + 1, block_tokens):
        part = tokens[end - block_tokens : end].astype(np.int64).tobytes()
        root = blake2b(root + part, digest_size=16).digest()
        keys.append(root)
    return keys


class BlockPool:
    """Blocks `first..first + count`."""

    def __init__(self, count: int, first: int = 0, *, remembers: bool = True) -> None:
        self._remembers = remembers
        self._free = list(range(first + count - 1, first - 1, -1))
        self._owners: dict[int, int] = {}
        self._key_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def num_available(self) -> int:
        """How many blocks can be taken."""
        return len(self._free) + len(self._idle)

    @property
    def num_owned(self) -> int:
        """The number of blocks in use."""
        return len(self._owners)

    def take(self, count: int) -> list[int] | None:
        """So many blocks of one's own, or None if there are not enough."""
        if count > self.num_available:
            return None
        while len(self._free) < count:
            block, _ = self._idle.popitem(last=False)
            del self._block_of[self._key_of.pop(block)]
            self._free.append(block)
        taken = [self._free.pop() for _ in range(count)]
        self._owners.update(dict.fromkeys(taken, 1))
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """Counts one more owner of each block."""
        for block in blocks:
            self._owners[block] = self._owners.get(block, 0) + 1
            self._idle.pop(block, None)

    def release(self, blocks: Iterable[int]) -> None:
        """Counts one owner less of each block; the later ones of a list are forgotten sooner."""
        for block in reversed(list(blocks)):
            self._owners[block] -= 1
            if self._owners[block]:
                continue
            del self._owners[block]
            if block in self._key_of:
                self._idle[block] = None
            else:
                self._free.append(block)

    def release_all(self) -> None:
        """Takes every block from its owners."""
        for block, count in list(self._owners.items()):
            self.release([block] * count)

    def num_owners(self, block: int) -> int:
        """How many have the block."""
        return self._owners.get(block, 0)

    def forget(self) -> None:
        """Frees the blocks that only hold beginnings of prompts seen before."""
        self._free += self._idle
        for block in self._idle:
            del self._block_of[self._key_of.pop(block)]
        self._idle.clear()

    def find(self, keys: list[bytes]) -> list[int]:
        """The blocks of the longest known beginning. The caller shares them or lets them be."""
        found = []
        for key in keys:
            block = self._block_of.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def remember(self, block: int, key: bytes) -> None:
        """Lets a full block be found; the first one with a key keeps it."""
        if self._remembers and block not in self._key_of and key not in self._block_of:
            self._key_of[block] = key
            self._block_of[key] = block
