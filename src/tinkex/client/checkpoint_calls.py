"""Checkpoints, as a RestClient reads, publishes, copies and deletes them. `_async` twins await the
Future."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from tinkex.client.call_errors import errors_in_futures
from tinkex.client.download import Progress, download_files
from tinkex.client.futures import Future
from tinkex.client.shared_session import Holder
from tinkex.client.transport import Answer
from tinkex.types.checkpoint import (
    CheckpointsListResponse,
    CopyWeightsResponse,
    ExternalWeightsUrlsResponse,
)
from tinkex.types.requests import CopyWeightsRequest, SetTTLRequest, WeightsInfoRequest
from tinkex.types.training import ModelID, WeightsInfoResponse
from tinkex.wire import json as wire_json
from tinkex.wire.paths import TinkerPath

__all__ = ["CheckpointCalls"]

T = TypeVar("T")


@errors_in_futures
class CheckpointCalls:
    """The requests about checkpoints; the REST client sends them."""

    _holder: Holder

    def _get(self, path: str, type_: type[T], params: Mapping[str, str] = {}) -> Future[T]:
        """The answer to a GET."""
        raise NotImplementedError

    def _post(self, path: str, request: msgspec.Struct, type_: type[T]) -> Future[T]:
        """The answer to a POST."""
        raise NotImplementedError

    def _send(self, method: str, path: str, request: msgspec.Struct | None = None) -> Future[None]:
        """The end of a request whose answer says nothing."""
        raise NotImplementedError

    def _call(
        self,
        method: str,
        path: str,
        read: Callable[[Answer], T],
        request: msgspec.Struct | None = None,
        *,
        params: Mapping[str, str] = {},
        headers: Mapping[str, str] = {},
    ) -> Future[T]:
        """What is read from the answer to any request."""
        raise NotImplementedError

    def list_checkpoints(self, training_run_id: ModelID) -> Future[CheckpointsListResponse]:
        """All checkpoints of one run.

        Args:
            training_run_id: The run, as `TrainingClient.model_id` names it.

        Example: `rest.list_checkpoints(run_id).result().checkpoints`.
        """
        return self._get(f"/training_runs/{training_run_id}/checkpoints", CheckpointsListResponse)

    async def list_checkpoints_async(self, training_run_id: ModelID) -> CheckpointsListResponse:
        """`list_checkpoints`, awaited."""
        return await self.list_checkpoints(training_run_id)

    def list_user_checkpoints(
        self, limit: int = 100, offset: int = 0
    ) -> Future[CheckpointsListResponse]:
        """One page of all your checkpoints, newest first.

        Args:
            limit: How many at most.
            offset: How many of the newest to skip.

        Example: `rest.list_user_checkpoints(limit=5).result().checkpoints`.
        """
        return self._get(
            "/checkpoints", CheckpointsListResponse, {"limit": str(limit), "offset": str(offset)}
        )

    async def list_user_checkpoints_async(
        self, limit: int = 100, offset: int = 0
    ) -> CheckpointsListResponse:
        """`list_user_checkpoints`, awaited."""
        return await self.list_user_checkpoints(limit, offset)

    def delete_checkpoint(self, training_run_id: ModelID, checkpoint_id: str) -> Future[None]:
        """Deletes a checkpoint, for good.

        Args:
            training_run_id: The run, as `TrainingClient.model_id` names it.
            checkpoint_id: Kind and name, such as `weights/step-10`.

        Example: `rest.delete_checkpoint(run_id, "sampler_weights/final").result()`.
        """
        return self._send("DELETE", f"/training_runs/{training_run_id}/checkpoints/{checkpoint_id}")

    async def delete_checkpoint_async(self, training_run_id: ModelID, checkpoint_id: str) -> None:
        """`delete_checkpoint`, awaited."""
        await self.delete_checkpoint(training_run_id, checkpoint_id)

    def delete_checkpoint_from_tinker_path(self, tinker_path: str) -> Future[None]:
        """Deletes a checkpoint, for good.

        Args:
            tinker_path: The checkpoint, as `tinker://RUN/KIND/NAME`.

        Example: `rest.delete_checkpoint_from_tinker_path(path).result()`.
        """
        return self._send("DELETE", _checkpoint(tinker_path))

    async def delete_checkpoint_from_tinker_path_async(self, tinker_path: str) -> None:
        """`delete_checkpoint_from_tinker_path`, awaited."""
        await self.delete_checkpoint_from_tinker_path(tinker_path)

    def publish_checkpoint_from_tinker_path(self, tinker_path: str) -> Future[None]:
        """Lets all tenants use a checkpoint.

        Args:
            tinker_path: The checkpoint, as `tinker://RUN/KIND/NAME`.

        Example: `rest.publish_checkpoint_from_tinker_path(path).result()`.
        """
        return self._send("POST", f"{_checkpoint(tinker_path)}/publish")

    async def publish_checkpoint_from_tinker_path_async(self, tinker_path: str) -> None:
        """`publish_checkpoint_from_tinker_path`, awaited."""
        await self.publish_checkpoint_from_tinker_path(tinker_path)

    def unpublish_checkpoint_from_tinker_path(self, tinker_path: str) -> Future[None]:
        """Makes a checkpoint private again.

        Args:
            tinker_path: The checkpoint, as `tinker://RUN/KIND/NAME`.

        Example: `rest.unpublish_checkpoint_from_tinker_path(path).result()`.
        """
        return self._send("DELETE", f"{_checkpoint(tinker_path)}/publish")

    async def unpublish_checkpoint_from_tinker_path_async(self, tinker_path: str) -> None:
        """`unpublish_checkpoint_from_tinker_path`, awaited."""
        await self.unpublish_checkpoint_from_tinker_path(tinker_path)

    def set_checkpoint_ttl_from_tinker_path(
        self, tinker_path: str, ttl_seconds: int | None
    ) -> Future[None]:
        """Sets when a checkpoint expires, counted from now; None means never.

        Args:
            tinker_path: The checkpoint, as `tinker://RUN/KIND/NAME`.
            ttl_seconds: Seconds from now; None means never.

        Example: `rest.set_checkpoint_ttl_from_tinker_path(path, 86_400).result()`.
        """
        return self._send(
            "PUT", f"{_checkpoint(tinker_path)}/ttl", SetTTLRequest(ttl_seconds=ttl_seconds)
        )

    async def set_checkpoint_ttl_from_tinker_path_async(
        self, tinker_path: str, ttl_seconds: int | None
    ) -> None:
        """`set_checkpoint_ttl_from_tinker_path`, awaited."""
        await self.set_checkpoint_ttl_from_tinker_path(tinker_path, ttl_seconds)

    def get_weights_info_by_tinker_path(self, tinker_path: str) -> Future[WeightsInfoResponse]:
        """What saved weights were trained with.

        Args:
            tinker_path: The checkpoint, as `tinker://RUN/KIND/NAME`.

        Example: `rest.get_weights_info_by_tinker_path(path).result().lora_rank`.
        """
        request = WeightsInfoRequest(tinker_path=str(TinkerPath.parse(tinker_path)))
        return self._post("/weights_info", request, WeightsInfoResponse)

    def get_external_weights_urls(self, tinker_path: str) -> Future[ExternalWeightsUrlsResponse]:
        """Where the files of an exported checkpoint can be fetched, without a key.

        Args:
            tinker_path: What `save_weights_external` gave.

        Example: `rest.get_external_weights_urls(export_path).result().urls`.
        """
        return self._get(
            f"{_checkpoint(tinker_path)}/external_weights_urls", ExternalWeightsUrlsResponse
        )

    async def get_external_weights_urls_async(
        self, tinker_path: str
    ) -> ExternalWeightsUrlsResponse:
        """`get_external_weights_urls`, awaited."""
        return await self.get_external_weights_urls(tinker_path)

    def download_checkpoint(
        self, tinker_path: str, folder: str | Path, on_progress: Progress | None = None
    ) -> Future[Path]:
        """Downloads an exported checkpoint into a new folder, streamed and checked.

        The folder appears, or replaces an older one, only once every file is whole. To export a
        training state first, use `TrainingClient.save_weights_external`.

        Args:
            tinker_path: What `save_weights_external` gave.
            folder: Where the files go.
            on_progress: Called with the file, its bytes so far, and its bytes in all or None.

        Example: `rest.download_checkpoint(export_path, "adapter").result()`.
        """
        path = TinkerPath.parse(tinker_path)
        return self._holder.submit(self._download(path, Path(folder).absolute(), on_progress))

    async def download_checkpoint_async(
        self, tinker_path: str, folder: str | Path, on_progress: Progress | None = None
    ) -> Path:
        """`download_checkpoint`, awaited."""
        return await self.download_checkpoint(tinker_path, folder, on_progress)

    async def _download(self, path: TinkerPath, folder: Path, on_progress: Progress | None) -> Path:
        connection = await self._holder.connection()

        async def urls() -> ExternalWeightsUrlsResponse:
            return await self.get_external_weights_urls(str(path))

        return await download_files(connection.transport, urls, folder, on_progress)

    def copy_weights(
        self,
        path: str,
        destination_project_id: str | None = None,
        *,
        ttl_seconds: int | None = None,
        weights_access_token: str | None = None,
    ) -> Future[str]:
        """Copies saved weights, another account's with its token; gives the copy's path.

        Args:
            path: The checkpoint, as `tinker://RUN/KIND/NAME`.
            destination_project_id: The project the copy belongs to.
            ttl_seconds: Seconds until the copy expires; None never.
            weights_access_token: The key of another account, if the weights are that one's.

        Example: `rest.copy_weights(path).result()`.
        """
        request = CopyWeightsRequest(
            source_path=str(TinkerPath.parse(path)),
            destination_project_id=destination_project_id,
            ttl_seconds=ttl_seconds,
        )
        headers = {}
        if weights_access_token is not None:
            headers["X-Tinker-Weights-Access-Token"] = weights_access_token

        def read(answer: Answer) -> str:
            return wire_json.decode(answer.body, CopyWeightsResponse).tinker_path

        return self._call("POST", "/copy_weights", read, request, headers=headers)

    async def copy_weights_async(
        self,
        path: str,
        destination_project_id: str | None = None,
        *,
        ttl_seconds: int | None = None,
        weights_access_token: str | None = None,
    ) -> str:
        """`copy_weights`, awaited."""
        return await self.copy_weights(
            path,
            destination_project_id,
            ttl_seconds=ttl_seconds,
            weights_access_token=weights_access_token,
        )


def _checkpoint(tinker_path: str) -> str:
    path = TinkerPath.parse(tinker_path)
    return f"/training_runs/{path.run_id}/checkpoints/{path.checkpoint_id}"
