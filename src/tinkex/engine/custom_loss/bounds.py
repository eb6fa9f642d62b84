"""Limits on the work of one uploaded loss, so that it cannot hold up an engine.

Counted before each operation runs, from the shapes of its arguments alone; a refusal does not
depend on timing and is the same at a replay.
"""

from __future__ import annotations

import threading

from tinkex.engine.errors import EngineUserError

__all__ = [
    "MAX_CALLS",
    "MAX_DATUM_VALUES",
    "MAX_INPUTS",
    "MAX_ITEMS",
    "MAX_METRICS",
    "MAX_NESTING",
    "MAX_NODES",
    "MAX_REQUEST_VALUES",
    "MAX_RESULT_VALUES",
    "DatumBudget",
    "WorkBudget",
]

MAX_NODES = 512
"""Maximum nodes of a graph."""

MAX_INPUTS = 16
"""Maximum tensors a loss takes."""

MAX_METRICS = 64
"""Maximum metrics a loss reports."""

MAX_ITEMS = 256
"""Maximum values in the arguments of one node."""

MAX_NESTING = 6
"""Maximum nesting depth of lists in the arguments of a node."""

MAX_RESULT_VALUES = 1 << 22
"""Maximum values of one operation's result."""

MAX_DATUM_VALUES = 1 << 24
"""Maximum values of all results of one datum together: bounds the memory its backward keeps."""

MAX_REQUEST_VALUES = 1 << 27
"""Maximum values computed for one request: bounds its time."""

MAX_CALLS = 1 << 17
"""Maximum operations of one request: nodes times datums."""


class WorkBudget:
    """Remaining budget of one request, shared by the threads that compute it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = MAX_CALLS
        self._left = MAX_REQUEST_VALUES

    def take(self, result: int, work: int, where: str) -> None:
        """Subtracts one operation: values of its result, and intermediate values.

        Raises:
            EngineUserError: the budget is exceeded.
        """
        with self._lock:
            self._calls -= 1
            self._left -= work
        if result > MAX_RESULT_VALUES:
            raise _too_large(f"{where} would return up to {result} values", MAX_RESULT_VALUES)
        if self._left < 0:
            raise _too_large(f"{where} brings the request above the bound", MAX_REQUEST_VALUES)
        if self._calls < 0:
            raise EngineUserError(
                f"The custom loss needs more than {MAX_CALLS} operations for this request. Send "
                "fewer datums in a request, or write the loss with fewer operations.",
                code="custom-loss-too-large",
                field="loss_fn",
                value=MAX_CALLS,
            )


class DatumBudget:
    """Remaining budget of one datum, within that of its request."""

    def __init__(self, request: WorkBudget) -> None:
        self._request = request
        self._left = MAX_DATUM_VALUES

    def take(self, result: int, work: int, where: str) -> None:
        """Subtracts one operation from both budgets.

        Raises:
            EngineUserError: a budget is exceeded.
        """
        self._left -= min(result, work)  # a view takes no memory
        self._request.take(result, work, where)
        if self._left < 0:
            raise _too_large(f"{where} brings one datum above the bound", MAX_DATUM_VALUES)


def _too_large(what: str, limit: int) -> EngineUserError:
    return EngineUserError(
        f"The custom loss is too large: {what}, and {limit} is the limit. Send shorter or fewer "
        "datums, or write the loss with smaller intermediate results.",
        code="custom-loss-too-large",
        field="loss_fn",
        value=limit,
    )
