"""Iteration, fields that were set, calls of pydantic's first version: as official types answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tinker import types as official

from tests.unit.types.test_types_models import SAME
from tinkex import types
from tinkex.errors import ValidationError

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::pydantic.warnings.PydanticDeprecatedSince20"
)


def plain(value: Any) -> Any:
    """A value without the class that it is of, which is the other package's."""
    if hasattr(value, "model_dump"):
        return value.model_dump()
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


@pytest.fixture(params=SAME, ids=lambda case: f"{case[0]}-{len(case[1])}")
def pair(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """A value of ours and the official one."""
    name, given = request.param
    return getattr(types, name)(**given), getattr(official, name)(**given)


def test_a_value_is_iterated_and_made_a_flat_dict(pair: tuple[Any, Any]) -> None:
    ours, theirs = pair
    assert plain(dict(ours)) == plain(dict(theirs))
    assert dict(ours) == {name: getattr(ours, name) for name, _ in theirs}
    assert sorted(name for name, _ in ours) == sorted(name for name, _ in theirs)


def test_the_first_versions_calls_do_what_their_successors_do(pair: tuple[Any, Any]) -> None:
    ours, theirs = pair
    assert ours.dict() == theirs.dict()
    assert ours.dict(exclude_none=True) == theirs.dict(exclude_none=True)
    assert json.loads(ours.json()) == json.loads(theirs.json())
    assert ours.copy() == ours.copy(deep=True) == ours
    assert type(ours).parse_obj(theirs.dict()) == ours
    assert type(ours).parse_raw(theirs.json()) == ours


def test_fields_that_were_set(pair: tuple[Any, Any]) -> None:
    ours, theirs = pair
    required = {name for name, each in type(theirs).model_fields.items() if each.is_required()}
    differ = {
        name
        for name, each in type(theirs).model_fields.items()
        if not each.is_required()
        and getattr(theirs, name) != each.get_default(call_default_factory=True)
    }
    assert ours.model_fields_set - {"type"} == required | differ
    assert ours.model_fields_set <= theirs.model_fields_set
    assert ours.model_extra is theirs.model_extra is None


@pytest.mark.parametrize("call", ["dict", "json", "copy"])
def test_the_first_versions_calls_name_their_successors(call: str) -> None:
    cursor = types.Cursor(offset=0, limit=1, total_count=2)
    with pytest.warns(DeprecationWarning, match="use model_") as caught:
        getattr(cursor, call)()
    assert caught[0].filename == __file__


def test_a_copy_of_the_first_version_takes_changes() -> None:
    for package in (types, official):
        params = package.AdamParams(learning_rate=0.5)
        assert params.copy(update={"learning_rate": 1.0}).learning_rate == 1.0
        assert params.learning_rate == 0.5


@pytest.mark.parametrize("package", [types, official])
def test_what_is_a_dataclass_there_is_not_iterated(package: Any) -> None:
    tensor = package.TensorData([1], "int64")
    datum = package.Datum(package.ModelInput.from_ints([1]), {"target_tokens": tensor})
    for value in (tensor, datum):
        with pytest.raises(TypeError, match="not iterable"):
            iter(value)


def test_constructing_ignores_unknown_names_and_still_checks() -> None:
    for package in (types, official):
        params = package.SamplingParams.model_construct(max_tokens=4, unknown=1)
        assert params == package.SamplingParams(max_tokens=4)
        assert package.AdamParams.construct(unknown=1) == package.AdamParams()
        assert package.SamplingParams.model_construct({"seed"}, seed=2).seed == 2
    with pytest.raises(ValidationError, match="max_tokens"):
        types.SamplingParams.model_construct(max_tokens="x")
