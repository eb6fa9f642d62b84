"""A declaration that contradicts itself is refused when it is made."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tinkex.errors import ValidationError
from tinkex.losses import Loss, LossInput, LossMetric, LossOption
from tinkex.losses.declaration import range_text

PLAIN: dict[str, Any] = {
    "name": "plain",
    "about": "A loss.",
    "formula": "-lp",
    "function": lambda lp_P, batch: -lp_P,
}
WEIGHTS = LossInput(name="weights", about="Weights.")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "not a name"}, "letters, digits"),
        ({"inputs": (WEIGHTS, WEIGHTS)}, "occurs twice"),
        ({"inputs": (LossInput(name="target_tokens", about="?"),)}, "occurs twice"),
        ({"options": (LossOption(name="a", about="", default=2, high=1),)}, "must be at most 1"),
        ({"options": (LossOption(name="a", about="", default=math.inf),)}, "must be a finite"),
        ({"options": (LossOption(name="a", about="", default=0, at_most="b"),)}, "no option"),
        ({"metrics": (LossMetric(name="m:mean", about=""),)}, "go together"),
        ({"metrics_function": lambda lp_P, batch: {}}, "go together"),
        (
            {
                "metrics": (LossMetric(name="m", about=""),),
                "metrics_function": lambda lp_P, batch: {},
            },
            "must end in",
        ),
        (
            {
                "metrics": (LossMetric(name="loss:sum", about=""),),
                "metrics_function": lambda lp_P, batch: {},
            },
            "occurs twice",
        ),
        ({"zero_where": "weights"}, "required inputs"),
        (
            {
                "zero_where": "weights",
                "inputs": (LossInput(name="weights", about="", is_required=False),),
            },
            "required inputs",
        ),
    ],
)
def test_contradictions_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Loss(**{**PLAIN, **change})


def test_flags_default_to_what_is_never_wrong() -> None:
    loss = Loss(**PLAIN)
    assert (loss.is_separable, loss.zero_where, loss.takes_top_k) == (False, None, False)


def test_given_options_go_over_the_defaults() -> None:
    options = (
        LossOption(name="a", about="", default=1),
        LossOption(name="b", about="", default=2),
    )
    assert Loss(**PLAIN, options=options).config_with({"b": 5}) == {"a": 1, "b": 5.0}


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (-math.inf, math.inf, "a finite number"),
        (0, math.inf, "0 or more"),
        (-math.inf, 0.5, "at most 0.5"),
        (0, 1, "between 0 and 1"),
    ],
)
def test_ranges_in_words(low: float, high: float, text: str) -> None:
    assert range_text(low, high) == text
