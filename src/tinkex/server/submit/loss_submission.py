"""Submissions of losses that clients upload: numbered by their session, kept, and done at once."""

from __future__ import annotations

from tinkex.server.services import Services
from tinkex.server.submit.submission import Submission
from tinkex.store import custom_losses
from tinkex.store.custom_losses import CustomLoss, NewCustomLoss
from tinkex.types.session import UntypedPromise

__all__ = ["CustomLossSubmission"]


class CustomLossSubmission(Submission[CustomLoss]):
    """A checked loss. There is nothing to compute, so it is never scheduled."""

    kind = "create_custom_loss"

    def __init__(self, new: NewCustomLoss) -> None:
        self._new = new

    @staticmethod
    def check_room(services: Services, owner: str) -> None:
        """How much a tenant may keep is counted where the loss is written."""

    async def keep(self, services: Services, key_id: int) -> tuple[CustomLoss, bool]:
        limits = services.config.limits
        return await services.db.awrite(
            custom_losses.create,
            self._new,
            limits.max_custom_losses_per_owner,
            limits.max_custom_loss_bytes_per_owner,
        )

    def is_scheduled(self, services: Services, row: CustomLoss) -> bool:
        return True

    async def schedule(self, services: Services, row: CustomLoss) -> None:
        raise AssertionError("A custom loss is done when it is kept.")

    def promise(self, row: CustomLoss) -> UntypedPromise:
        return UntypedPromise(request_id=row.request_id)
