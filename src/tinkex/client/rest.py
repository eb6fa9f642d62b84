"""RestClient: training runs, checkpoints, sessions, samplers. `_async` twins await the Future."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from tinkex.client.account_calls import AccountCalls
from tinkex.client.call_errors import errors_in_futures
from tinkex.client.download import Progress, download_files
from tinkex.client.futures import Future
from tinkex.client.merged_models import MergedModels
from tinkex.client.run_calls import RunCalls
from tinkex.client.runtime import Runtime, default_runtime
from tinkex.client.server_work import ServerWork
from tinkex.client.session_calls import AccessScope
from tinkex.client.session_traces import SessionTraces
from tinkex.client.shared_session import Holder
from tinkex.client.transport import Answer, Call
from tinkex.config import Config
from tinkex.types.checkpoint import (
    CheckpointsListResponse,
    CopyWeightsResponse,
    ExternalWeightsUrlsResponse,
    TrainingRun,
    TrainingRunsResponse,
)
from tinkex.types.requests import (
    CopyWeightsRequest,
    SetTTLRequest,
    WeightsInfoRequest,
)
from tinkex.types.session import (
    WhoamiResponse,
)
from tinkex.types.training import ModelID, WeightsInfoResponse
from tinkex.wire import json as wire_json
from tinkex.wire.paths import TinkerPath

T = TypeVar("T")


@errors_in_futures
class RestClient(AccountCalls, RunCalls, MergedModels, SessionTraces, ServerWork):
    """Looks at, and tidies up, what training has left on the server."""

    def __init__(
        self,
        holder: Holder | None = None,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        config: Config | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        if holder is None:
            config = config or Config(base_url=base_url, api_key=api_key)
            config.require_api_key()
            holder = Holder(runtime or default_runtime(), config)
        self._holder = holder

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._holder.config.normalized_base_url}>"

    # Training runs ----------------------------------------------------------------------------

    def list_training_runs(
        self,
        limit: int = 20,
        offset: int = 0,
        access_scope: AccessScope = "owned",
        project_id: str | None = None,
    ) -> Future[TrainingRunsResponse]:
        """One page of training runs, newest first.

        Example: `rest.list_training_runs(limit=5).result().training_runs`.
        """
        params = {"limit": str(limit), "offset": str(offset), "access_scope": access_scope}
        if project_id is not None:
            params["project_id"] = project_id
        return self._get("/training_runs", TrainingRunsResponse, params)

    async def list_training_runs_async(
        self,
        limit: int = 20,
        offset: int = 0,
        access_scope: AccessScope = "owned",
        project_id: str | None = None,
    ) -> TrainingRunsResponse:
        """`list_training_runs`, awaited."""
        return await self.list_training_runs(limit, offset, access_scope, project_id)

    def get_training_run(
        self, training_run_id: ModelID, access_scope: AccessScope = "owned"
    ) -> Future[TrainingRun]:
        """One training run. Example: `rest.get_training_run(run_id).result().base_model`."""
        return self._get(
            f"/training_runs/{training_run_id}", TrainingRun, {"access_scope": access_scope}
        )

    async def get_training_run_async(
        self, training_run_id: ModelID, access_scope: AccessScope = "owned"
    ) -> TrainingRun:
        """`get_training_run`, awaited."""
        return await self.get_training_run(training_run_id, access_scope)

    def get_training_run_by_tinker_path(
        self, tinker_path: str, access_scope: AccessScope = "owned"
    ) -> Future[TrainingRun]:
        """The training run a checkpoint belongs to.

        Example: `rest.get_training_run_by_tinker_path(path).result()`.
        """
        return self.get_training_run(TinkerPath.parse(tinker_path).run_id, access_scope)

    async def get_training_run_by_tinker_path_async(
        self, tinker_path: str, access_scope: AccessScope = "owned"
    ) -> TrainingRun:
        """`get_training_run_by_tinker_path`, awaited."""
        return await self.get_training_run_by_tinker_path(tinker_path, access_scope)

    # Checkpoints ------------------------------------------------------------------------------

    def list_checkpoints(self, training_run_id: ModelID) -> Future[CheckpointsListResponse]:
        """All checkpoints of one run.

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

        Example: `rest.delete_checkpoint(run_id, "sampler_weights/final").result()`.
        """
        return self._send("DELETE", f"/training_runs/{training_run_id}/checkpoints/{checkpoint_id}")

    async def delete_checkpoint_async(self, training_run_id: ModelID, checkpoint_id: str) -> None:
        """`delete_checkpoint`, awaited."""
        await self.delete_checkpoint(training_run_id, checkpoint_id)

    def delete_checkpoint_from_tinker_path(self, tinker_path: str) -> Future[None]:
        """Deletes a checkpoint, for good.

        Example: `rest.delete_checkpoint_from_tinker_path(path).result()`.
        """
        return self._send("DELETE", _checkpoint(tinker_path))

    async def delete_checkpoint_from_tinker_path_async(self, tinker_path: str) -> None:
        """`delete_checkpoint_from_tinker_path`, awaited."""
        await self.delete_checkpoint_from_tinker_path(tinker_path)

    def publish_checkpoint_from_tinker_path(self, tinker_path: str) -> Future[None]:
        """Lets all tenants use a checkpoint.

        Example: `rest.publish_checkpoint_from_tinker_path(path).result()`.
        """
        return self._send("POST", f"{_checkpoint(tinker_path)}/publish")

    async def publish_checkpoint_from_tinker_path_async(self, tinker_path: str) -> None:
        """`publish_checkpoint_from_tinker_path`, awaited."""
        await self.publish_checkpoint_from_tinker_path(tinker_path)

    def unpublish_checkpoint_from_tinker_path(self, tinker_path: str) -> Future[None]:
        """Makes a checkpoint private again.

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

        Example: `rest.get_weights_info_by_tinker_path(path).result().lora_rank`.
        """
        request = WeightsInfoRequest(tinker_path=str(TinkerPath.parse(tinker_path)))
        return self._post("/weights_info", request, WeightsInfoResponse)

    def get_external_weights_urls(self, tinker_path: str) -> Future[ExternalWeightsUrlsResponse]:
        """Where the files of an exported checkpoint can be fetched, without a key.

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

    # Account ----------------------------------------------------------------------------------

    def whoami(self) -> Future[WhoamiResponse]:
        """Who the key speaks for, as far as the server says. Example: `rest.whoami().result()`."""
        return self._holder.submit(self._whoami())

    async def _whoami(self) -> WhoamiResponse:
        connection = await self._holder.connection()
        return connection.whoami()

    # How requests are sent --------------------------------------------------------------------

    def _get(self, path: str, type_: type[T], params: Mapping[str, str] = {}) -> Future[T]:
        return self._call(
            "GET", path, lambda answer: wire_json.decode(answer.body, type_), params=params
        )

    def _post(self, path: str, request: msgspec.Struct, type_: type[T]) -> Future[T]:
        return self._call(
            "POST", path, lambda answer: wire_json.decode(answer.body, type_), request
        )

    def _patch(self, path: str, request: msgspec.Struct, type_: type[T]) -> Future[T]:
        return self._call(
            "PATCH", path, lambda answer: wire_json.decode(answer.body, type_), request
        )

    def _send(self, method: str, path: str, request: msgspec.Struct | None = None) -> Future[None]:
        return self._call(method, path, lambda answer: None, request)

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
        async def work() -> T:
            connection = await self._holder.connection()
            return read(await connection.transport.request(call))

        call = Call(
            method=method,
            path=path,
            pool="rest",
            body=None if request is None else (wire_json.encode(request),),
            params=params,
            headers=headers,
        )
        return self._holder.submit(work())


def _checkpoint(tinker_path: str) -> str:
    path = TinkerPath.parse(tinker_path)
    return f"/training_runs/{path.run_id}/checkpoints/{path.checkpoint_id}"
