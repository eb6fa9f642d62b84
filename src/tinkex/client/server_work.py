"""What the server does now, and cancelling one's own work on it. Tinkex servers only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from tinkex.client.call_errors import errors_in_futures
from tinkex.client.futures import Future
from tinkex.types.requests import CancelRequest
from tinkex.types.server_status import ServerStatus

__all__ = ["ServerWork"]

T = TypeVar("T")


@errors_in_futures
class ServerWork:
    """Status and cancelling. Other servers answer that they know neither."""

    def _get(self, path: str, type_: type[T], params: Mapping[str, str] = {}) -> Future[T]:
        """The answer to a request; the REST client makes it."""
        raise NotImplementedError

    def _post(self, path: str, request: msgspec.Struct, type_: type[T]) -> Future[T]:
        """The answer to a request; the REST client makes it."""
        raise NotImplementedError

    def get_server_status(self) -> Future[ServerStatus]:
        """What the server does now: engine, queue, tokens per second, memory and disk.

        Example: `rest.get_server_status().result().queue.training.operations`.
        """
        return self._get("/status", ServerStatus)

    async def get_server_status_async(self) -> ServerStatus:
        """`get_server_status`, awaited."""
        return await self.get_server_status()

    def cancel_request(self, request_id: str) -> Future[dict[str, int]]:
        """How many samples and operations were cancelled; none if the request has ended, or is a
        training operation that has begun.

        Args:
            request_id: The request, as events and errors name it.

        Example: `rest.cancel_request(request_id).result()`.
        """
        return self._cancel(CancelRequest(request_id=request_id))

    async def cancel_request_async(self, request_id: str) -> dict[str, int]:
        """`cancel_request`, awaited."""
        return await self.cancel_request(request_id)

    def cancel_run(self, training_run_id: str) -> Future[dict[str, int]]:
        """How many waiting operations of the run were cancelled.

        Args:
            training_run_id: The run, as `TrainingClient.model_id` names it.

        Example: `rest.cancel_run(run_id).result()`.
        """
        return self._cancel(CancelRequest(run_id=training_run_id))

    async def cancel_run_async(self, training_run_id: str) -> dict[str, int]:
        """`cancel_run`, awaited."""
        return await self.cancel_run(training_run_id)

    def cancel_samples(self) -> Future[dict[str, int]]:
        """How many of the caller's unfinished samples were cancelled, of all its sessions.

        Example: `rest.cancel_samples().result()`.
        """
        return self._cancel(CancelRequest(samples=True))

    async def cancel_samples_async(self) -> dict[str, int]:
        """`cancel_samples`, awaited."""
        return await self.cancel_samples()

    def _cancel(self, request: CancelRequest) -> Future[dict[str, int]]:
        return self._post("/cancel", request, dict[str, int])
