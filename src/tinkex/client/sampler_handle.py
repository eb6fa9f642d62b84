"""Sampler handles: a sampler's address as one line of text, without any key in it."""

from __future__ import annotations

import base64
import binascii

import msgspec

from tinkex.client.retry import RetryPolicy
from tinkex.errors import ValidationError


class SamplerHandle(msgspec.Struct, frozen=True, kw_only=True):
    """Where a sampler is found, and how its clients behave."""

    base_url: str
    session_id: str
    sampling_session_id: str
    retry: RetryPolicy | None = None
    record_stability_info: bool = False

    def to_text(self) -> str:
        """The handle as URL-safe text."""
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode()

    @classmethod
    def from_text(cls, text: str) -> SamplerHandle:
        """The handle a text spells.

        Raises:
            ValidationError: it spells none.
        """
        try:
            return msgspec.json.decode(base64.urlsafe_b64decode(text), type=cls)
        except (msgspec.DecodeError, binascii.Error, ValueError) as error:
            raise ValidationError(
                "This text is not a sampler handle.",
                hint="Take it from get_sampler_handle() and pass it on whole.",
            ) from error
