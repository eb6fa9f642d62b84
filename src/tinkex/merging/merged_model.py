"""The files of a merged model, each with its size known before its first byte.

A file of weights has the tensors of the base's in their order and types. With tied embeddings an
adapter of the unembedding belongs to the output alone, so the merged model has a head of its own
and its config says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tinkex.files.atomic_folder import MANIFEST
from tinkex.merging.adapter import Adapter, Change
from tinkex.merging.errors import NotMergeableError
from tinkex.merging.numbers import WIDTHS, decoded, encoded
from tinkex.merging.tensor_files import StoredTensor, read_header

__all__ = ["MergedFile", "merged_model"]

_CONFIG, _INDEX, _WEIGHTS = "config.json", "model.safetensors.index.json", "model.safetensors"
_COPIED = {".json", ".txt", ".model", ".jinja", ".tiktoken"}
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_ALIGN = 8


class MergedFile(NamedTuple):
    """One file of the merged model."""

    name: str
    size: int
    chunks: Callable[[], Iterator[bytes]]


@dataclass(frozen=True, slots=True)
class _MergedTensor:
    """A tensor as it will be: where its base lies, and what is added to it."""

    name: str
    source: StoredTensor
    change: Change | None

    def chunks(self) -> Iterator[bytes]:
        dtype = self.source.dtype
        for first, end, raw in self.source.pieces():
            if self.change is None:
                yield raw
                continue
            numbers = decoded(raw, dtype).reshape(end - first, -1)
            yield encoded(numbers + self.change.rows(first, end), dtype)


def merged_model(base: Path, adapter_folder: Path) -> list[MergedFile]:
    """The files that the model in `base` has with this adapter merged into it.

    Raises:
        NotMergeableError: there are no such weights, or the adapter is not one for them.
    """
    adapter = Adapter(adapter_folder)
    config = _read_json(base / _CONFIG)
    shards = {name: read_header(base / name) for name in _weight_files(base)}
    has_own_head = "lm_head" in adapter.unused
    is_tied = config.get("tie_word_embeddings") is True
    files = {}
    for name, stored in shards.items():
        tensors = [_merged(each, adapter) for each in stored.values() if each.name != _HEAD]
        if _HEAD in stored and not (has_own_head and is_tied):
            tensors.append(_merged(stored[_HEAD], adapter))
        files[name] = tensors
    if "lm_head" in adapter.unused:
        _add_head(files, adapter)
    if adapter.unused:
        raise NotMergeableError(
            f"The base model has no weight for {min(adapter.unused)[:200]!r} of the adapter. "
            "Merge it with PEFT, on a machine that has both."
        )
    if has_own_head:
        config["tie_word_embeddings"] = False
    return [
        *_other_files(base, config, files),
        *(_weight_file(name, tensors) for name, tensors in files.items()),
    ]


def _merged(stored: StoredTensor, adapter: Adapter) -> _MergedTensor:
    module, _, kind = stored.name.rpartition(".")
    change = adapter.change_of(module) if kind == "weight" else None
    return _MergedTensor(stored.name, stored, _checked(change, stored))


def _checked(change: Change | None, stored: StoredTensor) -> Change | None:
    if change is None:
        return None
    if stored.dtype not in WIDTHS:
        raise NotMergeableError(
            f"The base's tensor {stored.name[:200]!r} is of type {stored.dtype}, to which nothing "
            "can be added. Serve the model in bfloat16, float16 or float32."
        )
    if change.shape != stored.shape:
        raise NotMergeableError(
            f"The base's tensor {stored.name[:200]!r} has the shape {list(stored.shape)}, the "
            f"adapter's change {list(change.shape)}. Merge it with PEFT."
        )
    return change


def _add_head(files: dict[str, list[_MergedTensor]], adapter: Adapter) -> None:
    """Gives the model a head of its own: the embedding, changed."""
    for tensors in files.values():
        for each in tensors:
            if each.name == _EMBEDDING:
                change = _checked(adapter.change_of("lm_head"), each.source)
                tensors.append(_MergedTensor(_HEAD, each.source, change))
                return


def _weight_files(base: Path) -> list[str]:
    if (base / _INDEX).is_file():
        names = set(_read_json(base / _INDEX).get("weight_map", {}).values())
    else:
        names = {_WEIGHTS}
    if not all(isinstance(each, str) and Path(each).name == each for each in names):
        raise NotMergeableError(f"{_INDEX} of the base model names no plain files.")
    return sorted(names)


def _other_files(
    base: Path, config: dict[str, Any], files: dict[str, list[_MergedTensor]]
) -> Iterator[MergedFile]:
    """Config, index, and what belongs to the tokenizer."""
    yield _small_file(_CONFIG, json.dumps(config, indent=2).encode())
    if (base / _INDEX).is_file():
        weight_map = {each.name: name for name, tensors in files.items() for each in tensors}
        size = sum(each.source.size for tensors in files.values() for each in tensors)
        index = {"metadata": {"total_size": size}, "weight_map": weight_map}
        yield _small_file(_INDEX, json.dumps(index, indent=2).encode())
    for path in sorted(base.iterdir()):
        is_ours = path.name in {_CONFIG, MANIFEST} or path.name.endswith(".index.json")
        if path.suffix in _COPIED and path.is_file() and not is_ours:
            yield _small_file(path.name, path.read_bytes())


def _small_file(name: str, content: bytes) -> MergedFile:
    return MergedFile(name, len(content), lambda: iter([content]))


def _weight_file(name: str, tensors: list[_MergedTensor]) -> MergedFile:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for each in tensors:
        begin, end = end, end + each.source.size
        header[each.name] = {
            "dtype": each.source.dtype,
            "shape": each.source.shape,
            "data_offsets": (begin, end),
        }
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % _ALIGN)
    head = len(text).to_bytes(8, "little") + text

    def chunks() -> Iterator[bytes]:
        yield head
        for each in tensors:
            yield from each.chunks()

    return MergedFile(name, len(head) + end, chunks)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())  # takes Infinity, which some configs have
        if not isinstance(found, dict):
            raise ValueError("it is no object")
    except (OSError, ValueError, RecursionError) as error:
        raise NotMergeableError(f"The base model's {path.name} cannot be read.") from error
    return found
