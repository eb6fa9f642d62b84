"""An uploaded loss in serialized form: its inputs and its graph.

The bytes are stored and sent with every training request that names the loss, so that a request
means the same in every engine, at any time.
"""

from __future__ import annotations

import re

import msgspec

from tinkex.engine.errors import EngineUserError
from tinkex.types.custom_loss import CustomLossGraph, CustomLossInput

__all__ = [
    "CUSTOM",
    "LOGPROBS",
    "LOSS_ID",
    "METRIC_NAME",
    "UploadedLoss",
    "encode_loss",
    "graph_error",
    "read_loss",
]

CUSTOM = "custom"
"""The `loss_fn` of a request that names an uploaded loss."""

LOSS_ID = "loss_id"
"""The key of `loss_fn_config` that names it."""

LOGPROBS = "logprobs"
"""The first input of every uploaded loss: the model's logprobs of the targets."""

METRIC_NAME = re.compile(r"custom/[a-z0-9_./-]{1,64}:(sum|mean)")


class UploadedLoss(msgspec.Struct, frozen=True):
    """An uploaded loss: its inputs and its graph."""

    inputs: tuple[CustomLossInput, ...]
    graph: CustomLossGraph


def encode_loss(loss: UploadedLoss) -> bytes:
    """Returns the loss as bytes; equal losses give equal bytes."""
    return msgspec.json.encode(loss)


def read_loss(data: bytes) -> UploadedLoss:
    """Decodes the loss.

    Raises:
        EngineUserError: the bytes are not a loss.
    """
    try:
        return msgspec.json.decode(data, type=UploadedLoss)
    except msgspec.DecodeError as error:
        raise graph_error(f"The custom loss cannot be read: {error}") from error


def graph_error(message: str, field: str = "graph", value: object = "") -> EngineUserError:
    """Returns the error for a loss whose graph is not allowed."""
    return EngineUserError(message, code="bad-custom-loss", field=field, value=value)
