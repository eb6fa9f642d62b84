"""RestClient: training runs, checkpoints, sessions, samplers. `_async` twins await the Future."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from tinkex.client.account_calls import AccountCalls
from tinkex.client.call_errors import errors_in_futures
from tinkex.client.checkpoint_calls import CheckpointCalls
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
from tinkex.types.checkpoint import TrainingRun, TrainingRunsResponse
from tinkex.types.session import WhoamiResponse
from tinkex.types.training import ModelID
from tinkex.wire import json as wire_json
from tinkex.wire.paths import TinkerPath

T = TypeVar("T")


@errors_in_futures
class RestClient(CheckpointCalls, AccountCalls, RunCalls, MergedModels, SessionTraces, ServerWork):
    """Looks at, and tidies up, what training has left on the server.

    Args:
        base_url: The server's address.
        api_key: The key; by default that of the environment or of `tinkex auth login`.
        config: Every setting, in place of the two above.
        runtime: The thread that does the work; by default the one all clients share.
    """

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

        Args:
            limit: How many at most.
            offset: How many of the newest to skip.
            access_scope: `owned`, or `accessible` for what others share with you too.
            project_id: Only those of this project.

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
        """One training run.

        Args:
            training_run_id: The run, as `TrainingClient.model_id` names it.
            access_scope: `owned`, or `accessible` for what others share with you too.

        Example: `rest.get_training_run(run_id).result().base_model`.
        """
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

        Args:
            tinker_path: The checkpoint, as `tinker://RUN/KIND/NAME`.
            access_scope: `owned`, or `accessible` for what others share with you too.

        Example: `rest.get_training_run_by_tinker_path(path).result()`.
        """
        return self.get_training_run(TinkerPath.parse(tinker_path).run_id, access_scope)

    async def get_training_run_by_tinker_path_async(
        self, tinker_path: str, access_scope: AccessScope = "owned"
    ) -> TrainingRun:
        """`get_training_run_by_tinker_path`, awaited."""
        return await self.get_training_run_by_tinker_path(tinker_path, access_scope)

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
