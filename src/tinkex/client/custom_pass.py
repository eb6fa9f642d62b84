"""forward_backward with a loss of the user's own: score, call the loss, send its gradient.

The blocking and the awaited form differ only in how they wait for the scores; both begin with
`begin_custom` and end with `CustomPass.send`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinkex.client import custom_loss
from tinkex.client.futures import Future
from tinkex.client.loss_handle import LossHandle
from tinkex.client.model_operations import ModelWork
from tinkex.client.session import Session
from tinkex.types.datum import Datum
from tinkex.types.training import ForwardBackwardOutput

if TYPE_CHECKING:
    from tinkex.client.custom_loss import CustomLossFn

__all__ = ["CustomPass", "begin_custom"]


@dataclass(frozen=True, slots=True)
class CustomPass:
    """A batch that is being scored; `scores` is what `send` needs to go on."""

    scores: Future[ForwardBackwardOutput]
    session: Session
    work: ModelWork
    data: Sequence[Datum]
    scored: list[Datum]
    loss_fn: CustomLossFn

    def send(self, output: ForwardBackwardOutput) -> Future[ForwardBackwardOutput]:
        """Calls the loss in this thread and sends its gradient."""

        async def relabelled() -> ForwardBackwardOutput:
            return custom_loss.relabel(await sent, made)

        made = custom_loss.surrogate(self.data, self.scored, output, self.loss_fn)
        sent = self.work.run_batch(made.data, "cross_entropy", None, forward_only=False)
        return self.session.connection.runtime.submit(relabelled())


def begin_custom(
    session: Session, work: ModelWork, data: Sequence[Datum], loss_fn: CustomLossFn | LossHandle
) -> Future[ForwardBackwardOutput] | CustomPass:
    """The result itself where the server runs the loss, else a pass to be finished here.

    Raises:
        ValidationError: an example does not fit the loss.
    """
    if isinstance(loss_fn, LossHandle):
        loss_fn.check(data, session.session_id)
        if loss_fn.loss_id is not None:
            return work.run_batch(data, "custom", {"loss_id": loss_fn.loss_id}, forward_only=False)
        loss_fn = loss_fn.over_batch
    scored = custom_loss.scoring_batch(data)
    scores = work.run_batch(scored, "cross_entropy", None, forward_only=True)
    return CustomPass(scores, session, work, data, scored, loss_fn)
