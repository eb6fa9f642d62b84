"""forward_backward with a loss of the user's own: score, call the loss, send its gradient.

The caller gets a Future at once. Both passes take their places in the model's order at the call, so
later requests of the model see the gradient; the loss runs in a thread of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinkex.client import custom_loss
from tinkex.client.futures import Future
from tinkex.client.loss_handle import LossHandle
from tinkex.client.loss_thread import run_loss
from tinkex.client.model_operations import ModelWork
from tinkex.client.poller import Promise
from tinkex.client.session import Session
from tinkex.types.datum import Datum
from tinkex.types.training import ForwardBackwardOutput

if TYPE_CHECKING:
    from tinkex.client.custom_loss import CustomLossFn, Surrogate

__all__ = ["run_custom"]


@dataclass(frozen=True, slots=True)
class _Sent:
    """The gradient's requests, and what the loss gave."""

    promises: list[Promise]
    made: Surrogate


def run_custom(
    session: Session, work: ModelWork, data: Sequence[Datum], loss_fn: CustomLossFn | LossHandle
) -> Future[ForwardBackwardOutput]:
    """The result: of one pass where the server runs the loss, else of two with the loss between.

    Raises:
        ValidationError: an example does not fit the loss.
    """
    if isinstance(loss_fn, LossHandle):
        loss_fn.check(data, session.session_id)
        if loss_fn.loss_id is not None:
            return work.run_batch(data, "custom", {"loss_id": loss_fn.loss_id}, forward_only=False)
        loss_fn = loss_fn.over_batch
    return _two_passes(session, work, list(data), loss_fn)


def _two_passes(
    session: Session, work: ModelWork, data: list[Datum], loss_fn: CustomLossFn
) -> Future[ForwardBackwardOutput]:
    work.check_open()
    runtime, context = session.connection.runtime, copy_context()
    scored = custom_loss.scoring_batch(data)
    batch = work.encode(scored, "cross_entropy", None, forward_only=True)
    scoring_slot, gradient_slot = work.order.take_two()
    scores = runtime.submit_sent(work.send_batch(scoring_slot, batch), work.collect_batch)

    async def send() -> _Sent:
        try:
            output = await scores
            made = await run_loss(
                lambda: custom_loss.surrogate(data, scored, output, loss_fn, runtime.clock),
                context,
                work.loss_threads,
            )
            gradient = work.encode(made.data, "cross_entropy", None, forward_only=False)
            return _Sent(await work.send_batch(gradient_slot, gradient), made)
        finally:
            gradient_slot.release()

    async def collect(sending: Awaitable[_Sent]) -> ForwardBackwardOutput:
        sent = await sending
        return custom_loss.relabel(await work.collect_chunks(sent.promises), sent.made)

    return runtime.submit_sent(send(), collect)
