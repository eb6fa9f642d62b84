"""The base models by the names clients use."""

from __future__ import annotations

from pathlib import Path

from tinkex.engine.interface import ModelInfo
from tinkex.server.config import ServedModel
from tinkex.server.errors import NotFound
from tinkex.server.models.names import ModelNames, group_names


class Catalog:
    """Finds the model behind a name; a `:suffix` that no model has is ignored."""

    def __init__(self, served: tuple[ServedModel, ...], infos: list[ModelInfo]) -> None:
        self._sources = {model.name: model.source for model in served}
        self._infos = {info.name: info for info in infos}

    def names(self) -> list[str]:
        """The names, in the operator's order."""
        return list(self._infos)

    def models(self) -> list[ModelNames]:
        """Each model once, with all its names."""
        return group_names((info.name, info.path) for info in self._infos.values())

    def losses(self) -> list[str]:
        """The losses that every model can be trained with, in alphabetical order."""
        each = [set(info.losses) for info in self._infos.values()]
        return sorted(set().union(*each).intersection(*each))

    def find(self, name: str) -> ModelInfo:
        """The model of that name.

        Raises:
            NotFound: this server does not have it.
        """
        info = self._infos.get(name) or self._infos.get(name.rpartition(":")[0])
        if info is None:
            raise NotFound(
                f"base_model={name[:200]!r} is not served here.",
                hint=f"Served are: {'; '.join(str(each) for each in self.models())}.",
                code="unknown-model",
            )
        return info

    def is_same_base(self, name: str, other: str) -> bool:
        """Whether two names stand for one base model: adapters of the one fit the other.

        Raises:
            NotFound: this server does not have one of them.
        """
        return self.find(name).is_same_base(self.find(other))

    def tokenizer_id(self, info: ModelInfo) -> str:
        """What a client can load the tokenizer from: a local folder, or a hub id."""
        source = self._sources.get(info.name, "")
        if Path(info.path).is_dir() and info.path:
            return str(Path(info.path).resolve())
        return source or info.name

    def loadable_name(self, name: str) -> str:
        """The name itself if it looks like a hub id, else what its tokenizer loads from."""
        info = self.find(name)
        is_hub_id = name.count("/") == 1 and not name.startswith(("/", "."))
        return name if is_hub_id else self.tokenizer_id(info)
