"""Addresses on the page that a Tinkex server has at `/`. They hold no key, and nothing is sent to
make them: what stands behind the # stays in the browser."""

from __future__ import annotations

from urllib.parse import quote

from tinkex.client.session_info import SessionInfo
from tinkex.config import Config
from tinkex.types.training import ModelID

__all__ = ["RunPage", "ServerPage"]


class ServerPage(SessionInfo):
    """Where a browser shows what this client does."""

    config: Config

    def get_console_url(self) -> str:
        """Where a browser shows the runs of this session, on the page of a Tinkex server.

        Example: `service.get_console_url()`.
        """
        return f"{self.config.normalized_base_url}/#/runs?q={quote(self.session_id, safe='')}"

    def get_playground_url(self, model_path: str | None = None) -> str:
        """Where a browser shows the server's playground, with saved weights beside the base
        model.

        Args:
            model_path: The saved weights; None for the base model alone.

        Example: `service.get_playground_url(path)`.
        """
        weights = "" if model_path is None else f"?b={quote(model_path, safe='')}"
        return f"{self.config.normalized_base_url}/#/playground{weights}"


class RunPage:
    """Where a browser shows a run."""

    model_id: ModelID
    _base_url: str

    def get_console_url(self) -> str:
        """Where a browser shows this run: its curves, checkpoints and operations, as they come.

        Example: `training.get_console_url()`.
        """
        return f"{self._base_url}/#/runs/{quote(self.model_id, safe='')}"
