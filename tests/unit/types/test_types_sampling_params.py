"""Sampling parameters: their ranges, their JSON, and which of them are extensions."""

from __future__ import annotations

import math
from typing import Annotated, Any

import msgspec
import numpy as np
import pytest

from tinkex import types
from tinkex.errors import ValidationError
from tinkex.types._parameters import Parameter, check_parameters, extensions, extensions_used
from tinkex.wire import json

OFFICIAL = b'{"temperature":1.0,"top_k":-1,"top_p":1.0}'
"""What the official client sends for its defaults."""

INSIDE: dict[str, list[Any]] = {
    "min_p": [0.0, 1.0, 0.5],
    "repetition_penalty": [0.01, 100.0, 1.2],
    "presence_penalty": [-2.0, 2.0],
    "frequency_penalty": [-2.0, 2.0],
    "logit_bias": [
        {0: -100.0, 2**31 - 1: 100.0},
        dict.fromkeys(range(300), 1.0),
    ],
}
BEYOND: list[tuple[str, Any, str]] = [
    ("min_p", -0.01, "min_p=-0.01 must be at least 0 and at most 1"),
    ("min_p", 1.01, "min_p=1.01 must be at least 0 and at most 1"),
    ("min_p", math.nan, "min_p=nan must be"),
    ("min_p", True, "min_p=True must be a number"),
    ("repetition_penalty", 0.0, "repetition_penalty=0.0 must be at least 0.01 and at most 100"),
    ("repetition_penalty", 100.5, "repetition_penalty=100.5 must be at least 0.01"),
    ("presence_penalty", -2.1, "presence_penalty=-2.1 must be at least -2 and at most 2"),
    ("presence_penalty", math.inf, "presence_penalty=inf must be"),
    ("frequency_penalty", 2.1, "frequency_penalty=2.1 must be at least -2 and at most 2"),
    ("frequency_penalty", None, "frequency_penalty=None must be a number"),
    ("logit_bias", {5: 100.5}, r"logit_bias\[5\]=100.5 must be at least -100 and at most 100"),
    ("logit_bias", {5: -101}, r"logit_bias\[5\]=-101.0 must be"),
    ("logit_bias", {-1: 1.0}, "logit_bias has token id -1; ids must be 0 to 2147483647"),
    ("logit_bias", {2**31: 1.0}, "logit_bias has token id 2147483648"),
    ("logit_bias", {"a": 1.0}, "a token id in logit_bias='a' must be a whole number"),
    ("logit_bias", {5: "x"}, r"logit_bias\[5\]='x' must be a number"),
    ("logit_bias", [5], "must map token ids to numbers"),
    (
        "logit_bias",
        dict.fromkeys(range(301), 1.0),
        "logit_bias has 301 entries; it must have at most 300",
    ),
]


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, all_ in INSIDE.items() for v in all_])
def test_values_up_to_their_bounds_are_taken_and_come_back_from_json(name: str, value: Any) -> None:
    params = types.SamplingParams(**{name: value})
    assert getattr(params, name) == value
    assert json.decode(json.encode(params), types.SamplingParams) == params


@pytest.mark.parametrize(("name", "value", "message"), BEYOND)
def test_values_beyond_are_refused_by_name_value_and_range(
    name: str, value: Any, message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        types.SamplingParams(**{name: value})


def test_extensions_at_their_defaults_are_not_sent() -> None:
    plain: dict[str, Any] = {
        "min_p": 0,
        "repetition_penalty": float("1.0"),
        "presence_penalty": -0.0,
        "frequency_penalty": np.float32(0),
        "logit_bias": {},
    }
    assert json.encode(types.SamplingParams(**plain)) == OFFICIAL
    assert extensions_used(types.SamplingParams(**plain)) == ()
    assert types.SamplingParams(**plain) == types.SamplingParams()


def test_extensions_in_use_are_sent_after_the_official_parameters() -> None:
    params = types.SamplingParams(min_p=np.float64(0.5), logit_bias={np.int64(7): 2})
    expected = OFFICIAL[:-1] + b',"min_p":0.5,"logit_bias":{"7":2.0}}'
    assert json.encode(params) == expected
    assert extensions_used(params) == ("min_p", "logit_bias")


def test_official_parameters_are_no_extensions() -> None:
    assert extensions(types.SamplingParams) == (
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
    )
    params = types.SamplingParams(max_tokens=1, seed=2, stop="x", temperature=0, top_k=3, top_p=0.5)
    assert extensions_used(params) == ()


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """Another struct with declared parameters."""

    free: Annotated[float, Parameter(metavar="X", help="Any number.")] = 0.0
    switch: Annotated[int, Parameter(at_least=5, off=0, metavar="N", help="Off is 0.")] = 7

    def __post_init__(self) -> None:
        check_parameters(self)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"free": math.inf}, "free=inf must be a finite number"),
        ({"switch": 4}, r"switch=4 must be 0 \(off\) or at least 5"),
    ],
)
def test_a_declaration_is_all_a_parameter_needs(values: dict[str, Any], message: str) -> None:
    assert Declared(free=-1e9, switch=0).switch == 0
    with pytest.raises(ValidationError, match=message):
        Declared(**values)
