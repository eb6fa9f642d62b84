"""The docstring of a public method says what each of its arguments is."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tinkex
from tinkex import losses, regularizers, telemetry

CLASSES = (
    *(tinkex.ServiceClient, tinkex.TrainingClient, tinkex.SamplingClient, tinkex.RestClient),
    *(tinkex.AdminClient, tinkex.Future, tinkex.SampleStream),
)
"""Those whose methods have a section `Args`."""

OTHER = (tinkex, telemetry, regularizers, losses)
"""Elsewhere the text must name each argument; one that the method's only sentence is about need
not be named again."""


def is_twin(owner: object, name: str) -> bool:
    """Whether this is another form of a method, which has the same arguments."""
    plain = re.sub(r"_(async|future)$", "", name)
    return plain != name and hasattr(owner, plain)


def is_method(value: object) -> bool:
    return inspect.isfunction(value) or inspect.ismethod(value)


def own_functions(cls: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, value in inspect.getmembers(cls, is_method):
        is_ours = (getattr(value, "__module__", "") or "").startswith("tinkex.")
        if not name.startswith(("_", "model_")) and is_ours and not is_twin(cls, name):
            yield name, value


def parameters(function: Callable[..., Any]) -> list[str]:
    return [each for each in inspect.signature(function).parameters if each not in ("self", "cls")]


def described(docstring: str) -> list[str]:
    """The arguments of the section `Args`, in its order."""
    section = re.search(r"^Args:\n((?:(?: .*)?\n?)*)", docstring, re.MULTILINE)
    return re.findall(r"^ {4}(?:\*\*)?(\w+): ", section.group(1), re.MULTILINE) if section else []


METHODS = {
    f"{cls.__name__}.{name}": function for cls in CLASSES for name, function in own_functions(cls)
}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_of_a_client_describes_its_arguments(name: str) -> None:
    assert described(inspect.getdoc(METHODS[name]) or "") == parameters(METHODS[name])


@pytest.mark.parametrize("cls", CLASSES[:5], ids=lambda cls: cls.__name__)
def test_a_client_describes_what_it_is_made_of(cls: type) -> None:
    documented = described(inspect.getdoc(cls) or "")
    user_given = [each for each in parameters(cls.__init__) if each not in MADE_BY_US]
    assert documented == user_given


MADE_BY_US = {
    *("holder", "_holder", "unknown"),  # kept for code that was written for the official client
    *("session", "model_id", "sampling_session_id", "retry", "record_stability_info", "clone_id"),
}


def named_elsewhere() -> dict[str, Callable[..., Any]]:
    """The public functions, and the methods of public classes, that are not in `CLASSES`."""
    found: dict[str, Callable[..., Any]] = {}
    for module in OTHER:
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value) and value not in CLASSES:
                found |= {f"{name}.{each}": call for each, call in own_functions(value)}
            elif inspect.isfunction(value):
                found[name] = value
    return found


@pytest.mark.parametrize(("name", "function"), named_elsewhere().items())
def test_what_is_public_names_its_arguments(name: str, function: Callable[..., Any]) -> None:
    docstring, given = inspect.getdoc(function) or "", parameters(function)
    if len(given) > 1:
        missing = [each for each in given if not re.search(rf"\b{each}\b", docstring)]
        assert not missing, f"{name} does not say what {missing} is"
