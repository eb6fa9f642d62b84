"""Code written for the official SDK finds the same names, parameters and defaults here.

Compared by inspection with the installed `tinker`. What is left out on purpose stands in
`LEFT_OUT`, each with its reason; an entry that is no longer needed fails too, so the list stays
true.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pydantic
import pytest

import tinkex

tinker = pytest.importorskip("tinker")

CLIENTS = (
    "ServiceClient",
    "TrainingClient",
    "SamplingClient",
    "RestClient",
    "AdminClient",
    "APIFuture",
)
INTERNAL = "an inside of the official client: handed out, but not documented"
CONSOLE = "an answer does not know its server; the clients have get_console_url"
MADE_BY_US = "made by other clients, never by the user"
OLD_JSON = "a JSON form of training requests that 0.36 itself no longer sends"
NO_BODY = "a request without a body: its fields are the parameters of the method"
ANSWER = "an answer is made by the codec, from raw bytes, and by keyword; reading it is the same"
TAG = "the name of the message, which the wire keeps and the struct does not"
PYDANTIC = "a hook of pydantic's"

LEFT_OUT = {
    # Clients.
    "ServiceClient.get_telemetry": INTERNAL,
    "TrainingClient.get_telemetry": INTERNAL,
    "APIFuture(inner)": MADE_BY_US,
    "TrainingClient(holder)": MADE_BY_US,
    "TrainingClient(session)": MADE_BY_US,
    "TrainingClient(model_seq_id)": MADE_BY_US,
    "TrainingClient(model_id)": MADE_BY_US,
    "SamplingClient.create": "takes a holder; ServiceClient.create_sampling_client makes one",
    "SamplingClient.get_telemetry": INTERNAL,
    "SamplingClient(holder)": MADE_BY_US,
    "SamplingClient(session)": MADE_BY_US,
    "SamplingClient(shadow)": MADE_BY_US,
    "SamplingClient(retry_config)": MADE_BY_US,
    "RestClient.get_telemetry": INTERNAL,
    "RestClient(_holder)": INTERNAL,
    "AdminClient.get_telemetry": INTERNAL,
    "AdminClient(_holder)": INTERNAL,
    # Names of the package.
    # Types.
    "types.DmelChunk.serialize_dmel": PYDANTIC,
    "types.DmelChunk.validate_dmel": PYDANTIC,
    "types.ImageChunk.serialize_data": PYDANTIC,
    "types.ImageChunk.validate_data": PYDANTIC,
    "types.ForwardBackwardInput": OLD_JSON,
    "types.ForwardBackwardRequest": OLD_JSON,
    "types.ForwardRequest": OLD_JSON,
    "types.FutureRetrieveResponse": INTERNAL,
    "types.SaveWeightsExternalResponseInternal": INTERNAL,
    "types.SaveWeightsForSamplerResponseInternal": INTERNAL,
    "types.GetBillingUsageRequest": NO_BODY,
    "types.GetCurrentCheckpointStorageUsageRequest": NO_BODY,
    "types.OptimStepRequest(optim_params)": "on the wire it is adam_params or optimizer_params",
    "types.GetInfoResponse(type)": TAG,
    "types.LoadWeightsResponse(type)": TAG,
    "types.SaveWeightsExternalResponse(type)": TAG,
    "types.SaveWeightsForSamplerResponse(type)": TAG,
    "types.SaveWeightsResponse(type)": TAG,
    "types.UnloadModelResponse(type)": TAG,
    "types.SaveWeightsForSamplerResponse.get_console_url": CONSOLE,
    "types.SaveWeightsForSamplerResponse.get_playground_url": CONSOLE,
    "types.SaveWeightsResponse.get_console_url": CONSOLE,
    "types.ForwardBackwardOutput": ANSWER,
    "types.SampleResponse": ANSWER,
    "types.SampledSequence": ANSWER,
}
"""What is left out: a name, `Class.name`, `Class(parameter)`; a class alone: its constructor."""


def public(thing: object) -> list[str]:
    return [name for name in dir(thing) if not name.startswith("_")]


def parameters(thing: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters a caller gives, with the values that defaults stand for."""
    found = inspect.signature(thing).parameters.values()
    stars = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    plain = [each for each in found if each.name not in ("self", "cls") and each.kind not in stars]
    return [each.replace(default=default_of(thing, each)) for each in plain]


def default_of(thing: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """The default, made where it is made by a factory."""
    if inspect.isclass(thing) and issubclass(thing, msgspec.Struct):
        for field in msgspec.structs.fields(thing):
            if field.name == parameter.name and field.default_factory is not msgspec.NODEFAULT:
                return field.default_factory()
    if dataclasses.is_dataclass(thing):
        made = {each.name: each.default_factory for each in dataclasses.fields(thing)}
        if (factory := made.get(parameter.name, dataclasses.MISSING)) is not dataclasses.MISSING:
            return factory()
    is_pydantic = inspect.isclass(thing) and issubclass(thing, pydantic.BaseModel)
    if is_pydantic and parameter.name in thing.model_fields:
        field = thing.model_fields[parameter.name]
        return (
            inspect.Parameter.empty
            if field.is_required()
            else field.get_default(call_default_factory=True)
        )
    return parameter.default


def is_same_default(theirs: Any, ours: Any) -> bool:
    """Equal values; of values that are objects of the two packages, the same kind."""
    if theirs is inspect.Parameter.empty or theirs == ours:
        return True
    return type(theirs).__module__ != "builtins" and type(theirs).__name__ == type(ours).__name__


def signature_differences(name: str, theirs: Any, ours: Any) -> Iterator[str]:
    """What a call written for theirs would trip over."""
    known = {each.name: each for each in parameters(ours)}
    positional = [n for n, each in known.items() if each.kind is not each.KEYWORD_ONLY]
    official = parameters(theirs)
    for place, each in enumerate(official):
        mine = known.get(each.name)
        is_in_place = each.kind is each.KEYWORD_ONLY or positional[place : place + 1] == [each.name]
        if mine is None or not is_in_place or not is_same_default(each.default, mine.default):
            yield f"{name}({each.name})"
    for extra in set(known) - {each.name for each in official}:
        if known[extra].default is inspect.Parameter.empty:
            yield f"{name}({extra})"


def class_differences(name: str, theirs: Any, ours: Any, ignore: set[str]) -> Iterator[str]:
    """Names, and calls by these names, that only theirs has."""
    for member in public(theirs):
        if member in ignore:
            continue
        official, mine = getattr(theirs, member), getattr(ours, member, None)
        is_method = inspect.isroutine(official) and callable(official)
        if mine is None or (is_method and not callable(mine)):
            yield f"{name}.{member}"
        elif is_method:
            yield from signature_differences(f"{name}.{member}", official, mine)


def client_differences() -> Iterator[str]:
    for name in CLIENTS:
        theirs, ours = getattr(tinker, name), getattr(tinkex, name)
        yield from class_differences(name, theirs, ours, set())
        yield from signature_differences(name, theirs, ours)


def official_types() -> Iterator[tuple[str, Any]]:
    """The capitalised names of `tinker.types`: its classes and aliases, not its files."""
    for name in public(tinker.types):
        if name[0].isupper():
            yield name, getattr(tinker.types, name)


PYDANTIC_CALLS = {
    *("model_copy", "model_construct", "model_dump", "model_dump_json", "model_fields"),
    *("model_json_schema", "model_validate", "model_validate_json", "model_validate_strings"),
    *("model_extra", "model_fields_set", "__iter__"),
    *("construct", "copy", "dict", "json", "parse_obj", "parse_raw"),
}
"""What of pydantic's models our types answer too. The others: insides of version 1 (`__fields__`,
`schema`, `validate`), and hooks for those who make a model (`model_post_init`, `model_rebuild`)."""


def type_differences() -> Iterator[str]:
    plumbing = set(public(pydantic.BaseModel))
    for name, theirs in official_types():
        ours = getattr(tinkex.types, name, None)
        if ours is None:
            yield f"types.{name}"
        elif inspect.isclass(theirs) and not issubclass(theirs, str | tuple):
            yield from class_differences(f"types.{name}", theirs, ours, plumbing)
            missing = {each for each in PYDANTIC_CALLS if not hasattr(ours, each)}
            yield from (f"types.{name}.{each}" for each in missing if hasattr(theirs, each))
            yield from constructor_differences(f"types.{name}", theirs, ours)
        elif set(literals(theirs)) - set(literals(ours)):
            yield f"types.{name}"


def literals(alias: Any) -> tuple[Any, ...]:
    """The values of a `Literal`."""
    return typing.get_args(alias) if typing.get_origin(alias) is typing.Literal else ()


def constructor_differences(name: str, theirs: Any, ours: Any) -> Iterator[str]:
    """What differs in making one; its constant fields are nothing a user gives."""
    tags = {f"{name}({tag})" for tag in tags_of(theirs)}
    found = set(signature_differences(name, theirs, ours)) - tags
    yield from {name} if name in LEFT_OUT and found else found


def tags_of(model: Any) -> Iterator[str]:
    """The fields of a model that only ever have one value."""
    for name, field in getattr(model, "model_fields", {}).items():
        if len(typing.get_args(field.annotation)) == 1:
            yield name


def package_differences() -> Iterator[str]:
    for name in tinker.__all__:
        if not hasattr(tinkex, name):
            yield f"tinker.{name}"


def differences() -> set[str]:
    return {*client_differences(), *type_differences(), *package_differences()}


def test_official_names_parameters_and_defaults_are_ours_too() -> None:
    assert sorted(differences() - set(LEFT_OUT)) == []


def test_the_list_of_what_is_left_out_has_no_stale_entry() -> None:
    assert sorted(set(LEFT_OUT) - differences()) == []


def test_every_official_error_is_found_and_caught_the_same_way() -> None:
    """A handler written for a class of theirs catches what ours raises in its place."""
    theirs = {
        name: cls
        for name in tinker.__all__
        if inspect.isclass(cls := getattr(tinker, name)) and issubclass(cls, tinker.TinkerError)
    }
    for name, cls in theirs.items():
        ancestors = {base.__name__ for base in cls.__mro__ if base.__name__ in theirs}
        ours = {base.__name__ for base in getattr(tinkex, name).__mro__}
        names = {"TinkexError" if each == "TinkerError" else each for each in ancestors}
        assert names <= ours, name


@pytest.mark.parametrize("name", CLIENTS[:5])
def test_pairs_have_the_same_parameters(name: str) -> None:
    """`x` and `x_async` never drift apart."""
    client = getattr(tinkex, name)
    for member in public(client):
        if member.endswith("_async"):
            plain = getattr(client, member.removesuffix("_async"))
            pair = inspect.signature(getattr(client, member)), inspect.signature(plain)
            assert pair[0].parameters == pair[1].parameters, member
