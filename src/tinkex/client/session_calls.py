"""Sessions and samplers, as a RestClient reads them. `_async` twins await the Future."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeVar

import msgspec

from tinkex.client.call_errors import errors_in_futures
from tinkex.client.futures import Future
from tinkex.types.requests import AssignProjectRequest
from tinkex.types.search import SessionSearchRequest
from tinkex.types.session import (
    GetSamplerResponse,
    GetSessionResponse,
    ListSessionsResponse,
    SessionSearchResponse,
)

__all__ = ["AccessScope", "SessionCalls"]

T = TypeVar("T")
AccessScope = Literal["owned", "accessible"]


@errors_in_futures
class SessionCalls:
    """The requests about sessions and samplers; the REST client sends them."""

    def _get(self, path: str, type_: type[T], params: Mapping[str, str] = {}) -> Future[T]:
        """The answer to a GET."""
        raise NotImplementedError

    def _post(self, path: str, request: msgspec.Struct, type_: type[T]) -> Future[T]:
        """The answer to a POST."""
        raise NotImplementedError

    def _send(self, method: str, path: str, request: msgspec.Struct | None = None) -> Future[None]:
        """The end of a request with an empty answer."""
        raise NotImplementedError

    def list_sessions(
        self, limit: int = 20, offset: int = 0, access_scope: AccessScope = "owned"
    ) -> Future[ListSessionsResponse]:
        """One page of session ids, newest first.

        Args:
            limit: How many at most.
            offset: How many of the newest to skip.
            access_scope: `owned`, or `accessible` for what others share with you too.

        Example: `rest.list_sessions(limit=5).result().sessions`.
        """
        params = {"limit": str(limit), "offset": str(offset), "access_scope": access_scope}
        return self._get("/sessions", ListSessionsResponse, params)

    async def list_sessions_async(
        self, limit: int = 20, offset: int = 0, access_scope: AccessScope = "owned"
    ) -> ListSessionsResponse:
        """`list_sessions`, awaited."""
        return await self.list_sessions(limit, offset, access_scope)

    def get_session(
        self, session_id: str, access_scope: AccessScope = "owned"
    ) -> Future[GetSessionResponse]:
        """What was made in one session.

        Args:
            session_id: The session, as `ServiceClient.session_id` names it.
            access_scope: `owned`, or `accessible` for what others share with you too.

        Example: `rest.get_session(session_id).result().training_run_ids`.
        """
        return self._get(
            f"/sessions/{session_id}", GetSessionResponse, {"access_scope": access_scope}
        )

    async def get_session_async(
        self, session_id: str, access_scope: AccessScope = "owned"
    ) -> GetSessionResponse:
        """`get_session`, awaited."""
        return await self.get_session(session_id, access_scope)

    def search_sessions(self, request: SessionSearchRequest) -> Future[SessionSearchResponse]:
        """Sessions that fit a question (experimental on the hosted service).

        Args:
            request: What is looked for.

        Example: `rest.search_sessions(types.SessionSearchRequest(limit=5)).result()`.
        """
        return self._post("/sessions/search", request, SessionSearchResponse)

    async def search_sessions_async(self, request: SessionSearchRequest) -> SessionSearchResponse:
        """`search_sessions`, awaited."""
        return await self.search_sessions(request)

    def assign_session_project(self, session_id: str, project_id: str) -> Future[None]:
        """Moves a session to a project.

        Args:
            session_id: The session.
            project_id: The project.

        Example: `rest.assign_session_project(session_id, project_id).result()`.
        """
        request = AssignProjectRequest(project_id=project_id)
        return self._send("PUT", f"/sessions/{session_id}/project", request)

    async def assign_session_project_async(self, session_id: str, project_id: str) -> None:
        """`assign_session_project`, awaited."""
        await self.assign_session_project(session_id, project_id)

    def get_sampler(self, sampler_id: str) -> Future[GetSamplerResponse]:
        """What a sampler samples from.

        Args:
            sampler_id: The sampler, as `SamplingClient.sampling_session_id` names it.

        Example: `rest.get_sampler(sampler_id).result().base_model`.
        """
        return self._get(f"/samplers/{sampler_id}", GetSamplerResponse)

    async def get_sampler_async(self, sampler_id: str) -> GetSamplerResponse:
        """`get_sampler`, awaited."""
        return await self.get_sampler(sampler_id)
