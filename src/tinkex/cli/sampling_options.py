"""The options of commands that sample, made from the declarations of `SamplingParams`.

A parameter declared there becomes an option here, with its name, type, range and help.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

from tinkex.cli.options import FiniteFloat, FiniteRange
from tinkex.types._parameters import Field, parameter_fields
from tinkex.types.sampling import SamplingParams

Command = TypeVar("Command", bound=Callable[..., Any])

_DEFAULTS = {"max_tokens": 256}
"""Defaults that differ from those of `SamplingParams`."""

_SHOWN_DEFAULTS = ("max_tokens", "temperature")
"""Options whose help shows the default; that of the others is "off"."""


def sampling_options(command: Command) -> Command:
    """Adds the options that `sampling_params` takes."""
    options = [_option(field) for field in parameter_fields(SamplingParams)]
    options += [
        click.option("--seed", type=int, metavar="N", help="For the same samples again."),
        click.option(
            "--stop", multiple=True, metavar="TEXT", help="End at this text.  [repeatable]"
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def sampling_params(stop: tuple[str, ...], **options: Any) -> SamplingParams:
    """Returns the SamplingParams for the options of `sampling_options`.

    Raises:
        ValidationError: a value lies outside its range.
    """
    maps = [field.name for field in parameter_fields(SamplingParams) if field.kind is dict]
    for name in maps:
        options[name] = dict(options[name])
    return SamplingParams(stop=list(stop) or None, **options)


def _option(field: Field) -> Callable[[Command], Command]:
    parameter = field.parameter
    flag = "--" + field.name.replace("_", "-")
    if field.kind is dict:
        return click.option(
            flag,
            type=_token_number,
            multiple=True,
            metavar=parameter.metavar,
            help=f"{parameter.help}  [repeatable]",
        )
    return click.option(
        flag,
        type=_type(field),
        default=_DEFAULTS.get(field.name, field.default),
        show_default=field.name in _SHOWN_DEFAULTS,
        metavar=parameter.metavar,
        help=parameter.help,
    )


def _type(field: Field) -> click.ParamType[Any]:
    """Returns the type with its range; a value that switches the parameter off is
    outside that range."""
    parameter = field.parameter
    if parameter.off is not None:
        return click.INT if field.kind is int else FiniteFloat()
    lowest, highest = max(parameter.at_least, parameter.above), parameter.at_most
    bounds: dict[str, Any] = {}
    if math.isfinite(lowest):
        bounds |= {"min": lowest, "min_open": lowest == parameter.above}
    if math.isfinite(highest):
        bounds["max"] = highest
    return click.IntRange(**bounds) if field.kind is int else FiniteRange(**bounds)


def _token_number(text: str) -> tuple[int, float]:
    """Parses `ID=NUMBER`: a token id and its number."""
    token, _, number = text.partition("=")
    try:
        return int(token), float(number)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not ID=NUMBER, such as 42=-5.") from None
