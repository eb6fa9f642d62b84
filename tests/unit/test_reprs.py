"""Every public object shows what it is, not its address, and never its raw bytes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tinkex
from tinkex import Config, errors, losses, regularizers, telemetry, types

MODULES = (tinkex, types, errors, regularizers, telemetry, losses)
MANY = 5000
TENSOR = types.TensorData.from_numpy(np.arange(MANY, dtype=np.float32).reshape(10, 500))
PROMPT = types.ModelInput.from_ints(list(range(MANY)))
SEQUENCE = types.SampledSequence(
    tokens=list(range(MANY)), logprobs=[-0.5] * MANY, stop_reason="length"
)
LARGE: tuple[Any, ...] = (
    TENSOR,
    PROMPT,
    types.TensorData.from_numpy(np.arange(MANY)),
    types.Datum(PROMPT, {"target_tokens": list(range(MANY)), "weights": TENSOR}),
    types.ImageChunk(data=b"\x00" * MANY, format="png"),
    types.DmelChunk(dmel=b"\x00" * MANY),
    SEQUENCE,
    types.SampleResponse(sequences=[SEQUENCE] * 4),
    types.TopkLogprobs(token_ids=np.zeros((MANY, 5), "i4"), logprobs=np.zeros((MANY, 5), "f4")),
    types.ForwardBackwardOutput(
        loss_fn_output_type="ArrayRecord", loss_fn_outputs=[{"logprobs": TENSOR}] * 8
    ),
)


def public_classes(module: ModuleType) -> Iterator[type]:
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) and not getattr(value, "_is_protocol", False):
            yield value


CLASSES = sorted({each for module in MODULES for each in public_classes(module)}, key=repr)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_class_has_words_for_its_instances(cls: type) -> None:
    assert cls.__repr__ is not object.__repr__


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_class_with_bytes_does_not_show_them(cls: type) -> None:
    has_bytes = any("bytes" in str(hint) for hint in getattr(cls, "__annotations__", {}).values())
    if has_bytes and any(base.__name__ == "Struct" for base in cls.__mro__):
        assert "__repr__" in cls.__dict__, "the field's bytes would be shown"


@pytest.mark.parametrize("value", LARGE, ids=lambda value: type(value).__name__)
def test_a_large_value_shows_its_size_and_its_beginning(value: Any) -> None:
    shown = repr(value)
    assert len(shown) < 600
    assert "\\x" not in shown
    assert "Ellipsis" not in shown
    assert str(MANY) in shown or "examples" in shown or "[10, 500]" in shown


def test_a_small_value_shows_everything() -> None:
    assert repr(types.ModelInput.from_ints([1, 2])) == (
        "ModelInput(chunks=[EncodedTextChunk(tokens=[1, 2])])"
    )
    assert repr(types.TensorData([1, 2], "int64")) == "TensorData([1, 2], 'int64', shape=None)"


def test_clients_and_their_tools_say_where_they_are() -> None:
    config = Config(api_key="tml-secret", base_url="http://127.0.0.1:1", environ={}, files=())
    service = tinkex.ServiceClient(config=config)
    for made in (service, service.create_rest_client(), tinkex.AdminClient(config=config)):
        assert repr(made) == f"<{type(made).__name__} http://127.0.0.1:1>"
    with tinkex.Runtime() as runtime:
        assert repr(runtime) == "<Runtime running>"
    assert repr(runtime) == "<Runtime not running>"
    assert repr(telemetry.Bus()) == "<Bus 0 handlers>"
    assert repr(telemetry.Metrics(bus=telemetry.Bus())) == "<Metrics of tinkex.*>"
    assert repr(tinkex.Clock()) == "<Clock>"
