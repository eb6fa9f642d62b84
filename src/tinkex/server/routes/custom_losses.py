"""Losses that clients upload: checked, kept with their session, and named by training requests."""

from __future__ import annotations

from starlette.requests import Request

from tinkex.engine.custom_loss.checks import check_loss
from tinkex.engine.custom_loss.declaration import CUSTOM, LOSS_ID, UploadedLoss, encode_loss
from tinkex.engine.errors import EngineUserError
from tinkex.server.errors import NotFound, Unprocessable
from tinkex.server.gate.limits import check_text
from tinkex.server.services import Services, owner, services_of
from tinkex.server.submit.bodies import read_json
from tinkex.server.submit.loss_submission import CustomLossSubmission
from tinkex.server.submit.submission import check_number, submit_route
from tinkex.store import custom_losses
from tinkex.store.custom_losses import NewCustomLoss
from tinkex.types.requests import CreateCustomLossRequest, ForwardBackwardRequest

__all__ = ["ROUTES", "check_custom_loss"]


async def create_custom_loss(request: Request) -> CustomLossSubmission:
    """A promise of the id of an uploaded loss, which `forward_backward` then runs in one pass."""
    services, me = services_of(request), owner(request)
    limits = services.config.limits
    payload = await read_json(request, CreateCustomLossRequest, limits)
    check_number("custom_loss_seq_id", payload.custom_loss_seq_id)
    check_text("name", payload.name, limits.max_name_chars)
    await services.session(me, payload.session_id)
    loss = UploadedLoss(tuple(payload.inputs), payload.graph)
    try:
        check_loss(loss)
    except EngineUserError as error:
        raise Unprocessable(error.message, code=error.code) from error
    new = NewCustomLoss(
        owner=me,
        session_id=payload.session_id,
        seq_id=payload.custom_loss_seq_id,
        name=payload.name,
        body=encode_loss(loss),
    )
    return CustomLossSubmission(new)


async def check_custom_loss(services: Services, me: str, request: ForwardBackwardRequest) -> None:
    """Returns if the request names no uploaded loss, or one of its model's session.

    Raises:
        Unprocessable: it does not say which.
        NotFound: there is no such loss.
    """
    if request.loss_fn != CUSTOM:
        return
    loss_id = request.loss_fn_config.get(LOSS_ID)
    if not isinstance(loss_id, str):
        raise Unprocessable(
            f"loss_fn {CUSTOM!r} needs the text {LOSS_ID!r} in loss_fn_config.",
            hint="Create the loss with create_custom_loss, which returns the id.",
        )
    if not await services.db.aread(custom_losses.is_usable, me, loss_id, request.model_id):
        model_id = request.model_id[:200]
        raise NotFound(
            f"There is no custom loss {loss_id[:100]!r} in the session of {model_id!r}.",
            hint="A custom loss belongs to the session that created it.",
            code="unknown-custom-loss",
        )


ROUTES = [submit_route("/create_custom_loss", create_custom_loss, CustomLossSubmission)]
