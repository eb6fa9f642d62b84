"""Ownership of the KV cache's blocks, and which blocks hold the prefix of an earlier prompt.

Knows numbers of blocks only. A full block can be given a key, a hash of everything up to its end.
When its last owner releases it, it stays cached under its key until the memory is needed; the block
that was unused for longest is evicted first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from hashlib import blake2b

import numpy as np

__all__ = ["BlockPool", "prefix_keys"]


def prefix_keys(root: bytes, tokens: np.ndarray, block_tokens: int) -> list[bytes]:
    """Returns a key for every full block of the tokens; `root` identifies what else the keys and
    values depend on."""
    keys = []
    for end in range(block_tokens, len(tokens) + 1, block_tokens):
        part = tokens[end - block_tokens : end].astype(np.int64).tobytes()
        root = blake2b(root + part, digest_size=16).digest()
        keys.append(root)
    return keys


class BlockPool:
    """The blocks `first..first + count`."""

    def __init__(self, count: int, first: int = 0, *, remembers: bool = True) -> None:
        self._remembers = remembers
        self._free = list(range(first + count - 1, first - 1, -1))
        self._owners: dict[int, int] = {}
        self._key_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def num_available(self) -> int:
        """The number of blocks that can be taken."""
        return len(self._free) + len(self._idle)

    @property
    def num_owned(self) -> int:
        """The number of blocks in use."""
        return len(self._owners)

    def take(self, count: int) -> list[int] | None:
        """Takes this many unowned blocks; None if there are not enough."""
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
        """Adds an owner to each block."""
        for block in blocks:
            self._owners[block] = self._owners.get(block, 0) + 1
            self._idle.pop(block, None)

    def release(self, blocks: Iterable[int]) -> None:
        """Removes an owner from each block; the later ones of a list are evicted sooner."""
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
        """Removes all owners of every block."""
        for block, count in list(self._owners.items()):
            self.release([block] * count)

    def num_owners(self, block: int) -> int:
        """Returns the number of owners of the block."""
        return self._owners.get(block, 0)

    def forget(self) -> None:
        """Frees the blocks without owners, which only cache prefixes of earlier prompts."""
        self._free += self._idle
        for block in self._idle:
            del self._block_of[self._key_of.pop(block)]
        self._idle.clear()

    def find(self, keys: list[bytes]) -> list[int]:
        """Returns the blocks of the longest cached prefix. To keep them, the caller
        must share them."""
        found = []
        for key in keys:
            block = self._block_of.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def remember(self, block: int, key: bytes) -> None:
        """Caches a full block under its key; the first one with a key keeps it."""
        if self._remembers and block not in self._key_of and key not in self._block_of:
            self._key_of[block] = key
            self._block_of[key] = block
