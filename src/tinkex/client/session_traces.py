"""A session's trace: where it can be fetched, and the file itself."""

from __future__ import annotations

from pathlib import Path

from tinkex.client.call_errors import errors_in_futures
from tinkex.client.download import download_file
from tinkex.client.futures import Future
from tinkex.client.session_calls import SessionCalls
from tinkex.client.shared_session import Holder
from tinkex.errors import APIResponseValidationError, RequestFailedError
from tinkex.types.session import TraceExportResponse

__all__ = ["SessionTraces"]

TRACE_POLL_S = 5.0


@errors_in_futures
class SessionTraces(SessionCalls):
    """Traces of sessions. Self-hosted servers record none."""

    _holder: Holder

    def export_session_trace(self, session_id: str) -> Future[str]:
        """Where a session's trace can be fetched, waited for until it is ready.

        Args:
            session_id: The session.

        Example: `rest.export_session_trace(session_id).result()`.
        """
        return self._holder.submit(self._export_trace(session_id))

    async def export_session_trace_async(self, session_id: str) -> str:
        """`export_session_trace`, awaited."""
        return await self.export_session_trace(session_id)

    def download_session_trace(self, session_id: str, path: str | Path) -> Future[Path]:
        """Exports a session's trace and downloads it to a file, which appears once it is whole.

        Args:
            session_id: The session.
            path: The file.

        Example: `rest.download_session_trace(session_id, "trace.json").result()`.
        """
        return self._holder.submit(self._download_trace(session_id, Path(path).absolute()))

    async def download_session_trace_async(self, session_id: str, path: str | Path) -> Path:
        """`download_session_trace`, awaited."""
        return await self.download_session_trace(session_id, path)

    async def _download_trace(self, session_id: str, path: Path) -> Path:
        url = await self._export_trace(session_id)
        connection = await self._holder.connection()
        return await download_file(connection.transport, url, path)

    async def _export_trace(self, session_id: str) -> str:
        while True:
            state = await self._get(f"/sessions/{session_id}/trace_export", TraceExportResponse)
            if state.status == "failed":
                raise RequestFailedError(
                    f"The trace of session {session_id} could not be exported: {state.error}.",
                    category="server",
                )
            if state.status == "ready":
                if state.url is None:
                    raise APIResponseValidationError("The trace is ready but has no address.")
                return state.url
            await self._holder.runtime.clock.sleep(TRACE_POLL_S)
