"""The models of a server, each listed once with all its names."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tinkex.types.session import GetServerCapabilitiesResponse, SupportedModel


class OfferedModel(NamedTuple):
    """A model under its main name, and its other names."""

    model: SupportedModel
    aliases: list[str]

    def __str__(self) -> str:
        name = self.model.model_name or "?"
        return f"{name} (also {', '.join(self.aliases)})" if self.aliases else name


def offered_models(capabilities: GetServerCapabilitiesResponse) -> list[OfferedModel]:
    """Returns the models in the server's order. A server that reports no aliases has none."""
    main_of = capabilities.aliases
    listed = {each.model_name for each in capabilities.supported_models}
    return [
        OfferedModel(model, [name for name, main in main_of.items() if main == model.model_name])
        for model in capabilities.supported_models
        if main_of.get(model.model_name or "") not in listed
    ]
