"""`tinkex.types` offers every name, lazily, and the official ones among them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tinker import types as official

from tinkex import types

ROOT = Path(__file__).parents[3]
NOT_OURS = {
    "ForwardBackwardInput",  # the old JSON form of a request, known to wire.legacy_json alone
    "ForwardRequest",
    "FutureRetrieveResponse",  # a union of unrelated results
    "GetBillingUsageRequest",  # query parameters
    "GetCurrentCheckpointStorageUsageRequest",
    "SaveWeightsExternalResponseInternal",  # ours are not split in two
    "SaveWeightsForSamplerResponseInternal",
}


def test_every_name_can_be_had() -> None:
    for name in types.__all__:
        assert getattr(types, name) is not None
    assert set(types.__all__) <= set(dir(types))
    assert len(types.__all__) == len(set(types.__all__))


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        types.Nonsense  # type: ignore[attr-defined] # noqa: B018


def test_type_checkers_are_given_the_same_names() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "type_stub.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_official_names_are_offered() -> None:
    theirs = {name for name in dir(official) if name[0].isupper()}
    assert theirs - set(types.__all__) == NOT_OURS


@pytest.mark.parametrize("name", sorted(set(types.__all__) & set(dir(official))))
def test_official_fields_are_offered(name: str) -> None:
    """Code that builds or reads a value by the official field names works here."""
    theirs, ours = getattr(official, name), getattr(types, name)
    fields = getattr(theirs, "model_fields", None)
    if fields is None or not issubclass(ours, msgspec.Struct):
        return
    known = {field for field in dir(ours) if not field.startswith("__")}
    missing = set(fields) - known - {"type"} - RENAMED.get(name, set())
    assert not missing


RENAMED = {"OptimStepRequest": {"optim_params"}}  # here the two wire fields, and `params`


def test_importing_loads_no_module_of_values() -> None:
    program = (
        "import sys, tinkex.types\n"
        "print(sorted(name for name in sys.modules if name.startswith('tinkex.types.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_star_import_gives_everything() -> None:
    scope: dict[str, object] = {}
    exec("from tinkex.types import *", scope)
    assert set(types.__all__) <= set(scope)
