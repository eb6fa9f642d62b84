"""What is written down elsewhere about the built-in losses agrees with their declarations."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from typing import get_args

import pytest

from tinkex.losses import BUILT_IN, TARGETS, builtin
from tinkex.types import LossFnType
from tinkex.types.datum import LIST_DTYPES

HOSTED_ONLY = {"stable_reinforce", "custom"}
"""Losses of the hosted service that a Tinkex server does not compute."""


def test_the_public_type_has_every_loss() -> None:
    assert set(get_args(LossFnType)) - HOSTED_ONLY == set(BUILT_IN)


@pytest.mark.parametrize("name", BUILT_IN)
def test_inputs_may_be_plain_lists_of_the_declared_dtype(name: str) -> None:
    inputs = {each.name: each.dtype for each in BUILT_IN[name].inputs}
    assert {key: LIST_DTYPES.get(key) for key in inputs} == inputs
    assert LIST_DTYPES[TARGETS] == "int64"


def test_a_module_holds_the_loss_of_its_name() -> None:
    assert sorted(BUILT_IN) == [each.name for each in pkgutil.iter_modules(builtin.__path__)]


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_loss_is_described_in_sentences(name: str) -> None:
    loss = BUILT_IN[name]
    texts = [loss.about, *(each.about for each in (*loss.inputs, *loss.options, *loss.metrics))]
    assert all(text.endswith(".") and len(text) > 10 for text in texts)
    assert loss.formula


def test_declarations_load_no_torch() -> None:
    code = "import sys, tinkex.losses; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
