"""What a TrainingClient's user logs: numbers of their own among the run's metrics."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Awaitable, Mapping

from tinkex.client.futures import Future
from tinkex.client.ordering import Order, SendSlot
from tinkex.client.session import Session
from tinkex.errors import ValidationError
from tinkex.types._extensions import RUNS_METRICS
from tinkex.types.requests import LogMetricsRequest
from tinkex.types.runs import LogMetricsResponse
from tinkex.types.training import ModelID

__all__ = ["MetricLog"]


class MetricLog:
    """Sends one call after the other. Each counts for the step that the model's requests made
    before it lead to, and waits for none of their results."""

    def __init__(self, session: Session, model_id: ModelID, order: Order) -> None:
        self._session = session
        self._path = f"/training_runs/{model_id}/metrics"
        self._about = {"session_id": session.session_id, "model_id": model_id}
        self._order = order
        self._turn = asyncio.Lock()

    def log(self, metrics: Mapping[str, float], step: int | None) -> Future[LogMetricsResponse]:
        """Logs the numbers.

        Raises:
            ValidationError: a value is no number, or the server does not keep metrics.
            ClientClosedError: the session is over.
        """
        self._session.check_open()
        if RUNS_METRICS not in self._session.connection.flags.extensions:
            raise ValidationError(
                "This server has not announced that it keeps metrics of runs.",
                hint="Use a Tinkex server of this version, or log elsewhere.",
            )
        request = LogMetricsRequest(
            metrics={str(name): _number(name, value) for name, value in metrics.items()},
            step=step,
            log_id=uuid.uuid4().hex,
        )
        slot = self._order.take()
        return self._session.connection.runtime.submit_sent(
            self._last_number(slot), lambda last: self._send(request, last)
        )

    async def _last_number(self, slot: SendSlot) -> int:
        """The number of the model's last request before this call."""
        try:
            await slot.wait()
            return self._order.last_number
        finally:
            slot.release()

    async def _send(self, request: LogMetricsRequest, last: Awaitable[int]) -> LogMetricsResponse:
        after_seq = await last
        if request.step is None:
            request = LogMetricsRequest(
                metrics=request.metrics, after_seq=after_seq, log_id=request.log_id
            )
        async with self._turn:
            return await self._session.connection.post(
                self._path, request, LogMetricsResponse, about=self._about
            )


def _number(name: str, value: float) -> float | None:
    """The value as the wire has it: None where it is not finite.

    Raises:
        ValidationError: it is no number.
    """
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValidationError(
            f"metrics[{name!r}] is a {type(value).__name__}, not a number.",
            hint="Log numbers; of a tensor, its mean or another single value.",
        ) from error
    return number if math.isfinite(number) else None
