"""What the official client sees, judged by transformers, peft and plain autograd.

The scenarios of a module run together in a process and against a server of their own; each is a
test here.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.contract.conftest import Outcome, scenario_names

MODULES = (
    "training_scenarios",
    "mistake_scenarios",
    "sampling_scenarios",
    "state_scenarios",
    "session_scenarios",
)
pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(
    ("module", "name"),
    [(module, name) for module in MODULES for name in scenario_names(module)],
)
def test_scenario(module: str, name: str, outcome_of: Callable[[str], Outcome]) -> None:
    failure = outcome_of(module)["failures"][name]
    assert failure is None, failure
