"""Checks of a sample's arguments, before anything is sent."""

from __future__ import annotations

from tinkex.errors import ValidationError
from tinkex.types._numbers import as_int
from tinkex.types.model_input import ModelInput

__all__ = ["check_prompt", "checked_count"]


def check_prompt(prompt: object) -> None:
    """Returns if it is a prompt.

    Raises:
        ValidationError: it is something else.
    """
    if not isinstance(prompt, ModelInput):
        raise ValidationError(
            f"prompt must be a ModelInput, not {type(prompt).__name__}.",
            hint="For token ids use ModelInput.from_ints([...]).",
        )


def checked_count(num_samples: int) -> int:
    """The number of samples as an int.

    Raises:
        ValidationError: it is no number, or below 1.
    """
    count = as_int("num_samples", num_samples)
    if count < 1:
        raise ValidationError(f"num_samples={count} must be at least 1.")
    return count
