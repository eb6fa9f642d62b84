"""Checkpoints, exports, copies, tenants and sessions, through the official client."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.contract.conftest import Outcome, scenario_names

MODULE = "state_scenarios"
pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("name", scenario_names(MODULE))
def test_state(name: str, outcome_of: Callable[[str], Outcome]) -> None:
    failure = outcome_of(MODULE)["failures"][name]
    assert failure is None, failure
