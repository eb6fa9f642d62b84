"""LossHandle: a loss of the user's own, made once per session and run per example.

Where the server runs such losses the traced graph is uploaded and the batch is sent as it is;
elsewhere the same graph runs here on the server's logprobs, under the same rules.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tinkex.client.loss_trace import FIRST_INPUT, TracedLoss, encode_graph, loss_key
from tinkex.errors import UnprocessableEntityError, ValidationError
from tinkex.types.custom_loss import CustomLossInput
from tinkex.types.datum import Datum
from tinkex.types.requests import CreateCustomLossRequest
from tinkex.types.tensor import TensorData
from tinkex.types.training import CreateCustomLossResponse
from tinkex.wire import json as wire_json

if TYPE_CHECKING:
    import torch

    from tinkex.client.session import Session


log = logging.getLogger("tinkex")

_REFUSED_GRAPH = "bad-custom-loss"
"""The code of a Tinkex server that does not run what is in a graph."""


class LossHandle(msgspec.Struct, frozen=True, eq=False):
    """A loss for `TrainingClient.forward_backward_custom`; made by `create_custom_loss`."""

    name: str
    inputs: tuple[CustomLossInput, ...]
    session_id: str
    graph: Any
    """The traced function, a `torch.fx.GraphModule`."""
    loss_id: str | None = None
    """The server's id of the loss; None if it runs in the client."""

    def __repr__(self) -> str:
        where = "run here" if self.loss_id is None else f"run by the server as {self.loss_id}"
        return f"<LossHandle {self.name}({', '.join(each.name for each in self.inputs)}), {where}>"

    @property
    def input_names(self) -> tuple[str, ...]:
        """The `loss_fn_inputs` it reads, in the order of its parameters."""
        return tuple(each.name for each in self.inputs if each.name != FIRST_INPUT)

    @property
    def key(self) -> str:
        """Equal for losses with equal inputs and graphs, whatever their names."""
        return loss_key(self.inputs, encode_graph(self.name, self.graph.graph))

    def check(self, data: Sequence[Datum], session_id: str) -> None:
        """Refuses a batch that this loss cannot be computed on.

        Args:
            data: The batch.
            session_id: The session that the batch is sent in.

        Raises:
            ValidationError: it is of another session, or an example lacks or misshapes an input.
        """
        if session_id != self.session_id:
            raise ValidationError(
                f"The custom loss {self.name} belongs to session {self.session_id}.",
                hint="Create it with the ServiceClient that made this TrainingClient.",
            )
        for number, datum in enumerate(data):
            for wanted in self.inputs:
                self._check_input(number, datum, wanted)

    def _check_input(self, number: int, datum: Datum, wanted: CustomLossInput) -> None:
        # The logprobs themselves come from the server, one for each target.
        name = "target_tokens" if wanted.name == FIRST_INPUT else wanted.name
        tensor = datum.loss_fn_inputs.get(name)
        if tensor is None:
            raise ValidationError(
                f"Example {number} has no loss_fn_inputs[{name!r}], which the custom loss "
                f"{self.name} takes."
            )
        if _rank(tensor) != wanted.rank:
            raise ValidationError(
                f"loss_fn_inputs[{name!r}] of example {number} has rank {_rank(tensor)}; "
                f"the custom loss {self.name} was made for rank {wanted.rank}."
            )

    def over_batch(
        self, data: list[Datum], logprobs: list[torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """The sum of the losses of all examples, and their metrics by suffix.

        Args:
            data: The examples.
            logprobs: Their logprobs, which carry gradients.
        """
        import torch

        losses: list[torch.Tensor] = []
        metrics: dict[str, list[float]] = {}
        for datum, scores in zip(data, logprobs, strict=True):
            inputs = [datum.loss_fn_inputs[name].to_torch() for name in self.input_names]
            loss, found = self.graph(scores, *inputs)
            losses.append(self._scalar("loss", loss))
            for name, value in found.items():
                metrics.setdefault(name, []).append(float(self._scalar(name, value).detach()))
        return torch.stack(losses).sum(), {
            name: sum(values) / (len(values) if name.endswith(":mean") else 1)
            for name, values in metrics.items()
        }

    def _scalar(self, name: str, value: Any) -> torch.Tensor:
        import torch

        tensor: torch.Tensor = value if isinstance(value, torch.Tensor) else torch.tensor(value)
        if tensor.dim():
            raise ValidationError(
                f"{name} of the custom loss {self.name} must be a scalar; it has shape "
                f"{tuple(tensor.shape)}."
            )
        return tensor


def _rank(tensor: TensorData) -> int:
    return 1 if tensor.shape is None else len(tensor.shape)


async def make_handle(session: Session, traced: TracedLoss) -> LossHandle:
    """The handle of a traced loss, made once in a session; only to be called on the loop.

    Raises:
        APIError, RequestFailedError: the upload failed; the next call tries anew.
    """
    made = session.losses.get(traced.key)
    if made is None or (made.done() and _has_failed(made)):
        made = session.connection.runtime.spawn(_make(session, traced))
        session.losses[traced.key] = made
    # A shield, because others may wait for the same upload.
    return await asyncio.shield(made)


def _has_failed(made: asyncio.Task[LossHandle]) -> bool:
    return made.cancelled() or made.exception() is not None


async def _make(session: Session, traced: TracedLoss) -> LossHandle:
    loss_id = None
    if session.connection.flags.custom_loss_server_side:
        try:
            loss_id = await _upload(session, traced)
        except UnprocessableEntityError as error:
            if error.code != _REFUSED_GRAPH:
                raise
            log.warning(
                "The server does not run the custom loss %s; the client computes it, at the cost "
                "of one forward pass more: %s",
                traced.name,
                error.message,
            )
    return LossHandle(traced.name, traced.inputs, session.session_id, traced.module, loss_id)


async def _upload(session: Session, traced: TracedLoss) -> str:
    request = CreateCustomLossRequest(
        session_id=session.session_id,
        custom_loss_seq_id=next(session.loss_seq_ids),
        name=traced.name,
        inputs=list(traced.inputs),
        graph=traced.graph,
    )
    promise, _ = await session.connection.promise(
        "/create_custom_loss",
        (wire_json.encode(request),),
        request_type="CreateCustomLoss",
        about={"session_id": session.session_id},
    )
    answer = await session.connection.fetch(promise)
    return wire_json.decode(answer.body, CreateCustomLossResponse).loss_id
