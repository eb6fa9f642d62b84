"""Checkpoints merged into their base models: the links to the files, and the files themselves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from tinkex.client.call_errors import errors_in_futures
from tinkex.client.download import Progress, download_files
from tinkex.client.futures import Future
from tinkex.client.shared_session import Holder
from tinkex.types.checkpoint import MergedModelResponse
from tinkex.wire.paths import TinkerPath

__all__ = ["MergedModels"]

T = TypeVar("T")


@errors_in_futures
class MergedModels:
    """Whole models for programs that take no adapters. Only Tinkex servers have the route."""

    _holder: Holder

    def _get(self, path: str, type_: type[T], params: Mapping[str, str] = {}) -> Future[T]:
        """The answer to a request; the REST client makes it."""
        raise NotImplementedError

    def get_merged_model(self, tinker_path: str) -> Future[MergedModelResponse]:
        """Links to the files of a checkpoint's base model with the checkpoint merged into it.

        They need no key and work for an hour.

        Args:
            tinker_path: The checkpoint.

        Example: `rest.get_merged_model(path).result().size_bytes`.
        """
        path = TinkerPath.parse(tinker_path)
        where = f"/training_runs/{path.run_id}/checkpoints/{path.kind}/{path.name}/merged"
        return self._get(where, MergedModelResponse)

    async def get_merged_model_async(self, tinker_path: str) -> MergedModelResponse:
        """`get_merged_model`, awaited."""
        return await self.get_merged_model(tinker_path)

    def download_merged_model(
        self, tinker_path: str, folder: str | Path, on_progress: Progress | None = None
    ) -> Future[Path]:
        """Downloads the base model with a checkpoint merged into it, as a folder that transformers
        and vLLM load. It appears, or replaces an older one, only once every file is whole.

        Args:
            tinker_path: The checkpoint.
            folder: Where the model goes.
            on_progress: Called with the file, its bytes so far, and its bytes in all or None.

        Example: `rest.download_merged_model(path, "merged").result()`.
        """
        path = TinkerPath.parse(tinker_path)
        goal = Path(folder).absolute()
        return self._holder.submit(self._download_merged(path, goal, on_progress))

    async def download_merged_model_async(
        self, tinker_path: str, folder: str | Path, on_progress: Progress | None = None
    ) -> Path:
        """`download_merged_model`, awaited."""
        return await self.download_merged_model(tinker_path, folder, on_progress)

    async def _download_merged(
        self, path: TinkerPath, folder: Path, on_progress: Progress | None
    ) -> Path:
        connection = await self._holder.connection()

        async def urls() -> MergedModelResponse:
            return await self.get_merged_model(str(path))

        return await download_files(connection.transport, urls, folder, on_progress)
