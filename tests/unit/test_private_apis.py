"""Private parts of dependencies that we use: each in one module, still there, bounded from above.

A private name may change in any release. This test is what fails first, with the name in its id,
when a dependency is upgraded; the bound in pyproject.toml keeps users from getting there before us.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from packaging.requirements import Requirement

import tinkex

PACKAGE = Path(tinkex.__file__).parent
PYPROJECT = PACKAGE.parent.parent / "pyproject.toml"


class Touch(NamedTuple):
    """One private name of a library, the module that uses it, and how to see that it exists."""

    library: str
    name: str
    module: str
    exists: Callable[[], Any]


def _torch_op(namespace: str, name: str, module: str) -> Touch:
    def look() -> Any:
        import torch

        return getattr(getattr(torch.ops, namespace), name)

    return Touch("torch", name, module, look)


def _adamw() -> Any:
    from torch.optim.adamw import adamw

    return adamw


def _aiohttp_connector(name: str) -> Callable[[], Any]:
    def look() -> Any:
        import inspect

        from aiohttp.connector import BaseConnector

        assert re.search(rf"self\.{name}\b", inspect.getsource(BaseConnector.__init__))
        return name

    return look


def _response_handler() -> Any:
    from aiohttp.client_proto import ResponseHandler

    return ResponseHandler.start_timeout


def _retry_connection() -> Any:
    import inspect

    from aiohttp import ClientSession

    return re.search(r"self\._retry_connection\b", inspect.getsource(ClientSession._request))


TOUCHES = [
    _torch_op("mkldnn", "_reorder_linear_weight", "engine/ops/linear.py"),
    _torch_op("mkldnn", "_linear_pointwise", "engine/ops/linear.py"),
    _torch_op("aten", "_softmax_backward_data", "engine/attention/cpu.py"),
    Touch("torch", "torch.optim.adamw", "engine/training/update_rules.py", _adamw),
    Touch("aiohttp", "connector._closed", "client/pools.py", _aiohttp_connector("_closed")),
    Touch("aiohttp", "connector._loop", "client/pools.py", _aiohttp_connector("_loop")),
    Touch("aiohttp", "connector._factory", "client/pools.py", _aiohttp_connector("_factory")),
    Touch("aiohttp", "session._retry_connection", "client/pools.py", _retry_connection),
    Touch("aiohttp", "client_proto", "client/pools.py", _response_handler),
]


def _id(touch: Touch) -> str:
    return f"{touch.library}:{touch.name}"


@pytest.mark.parametrize("touch", TOUCHES, ids=_id)
def test_the_private_name_still_exists(touch: Touch) -> None:
    assert touch.exists() is not None


@pytest.mark.parametrize("touch", TOUCHES, ids=_id)
def test_the_private_name_is_used_in_one_module_only(touch: Touch) -> None:
    users = [
        str(path.relative_to(PACKAGE))
        for path in sorted(PACKAGE.rglob("*.py"))
        if touch.name in path.read_text(encoding="utf-8")
    ]
    assert users == [touch.module]


@pytest.mark.parametrize("library", sorted({touch.library for touch in TOUCHES}))
def test_the_library_has_an_upper_bound(library: str) -> None:
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    named = [Requirement(text) for group in groups for text in group]
    specifiers = [each.specifier for each in named if each.name == library]
    assert specifiers
    for specifier in specifiers:
        assert any(each.operator in {"<", "<=", "==", "~="} for each in specifier), library


def test_every_underscored_name_of_torch_operators_is_listed() -> None:
    used = {
        name
        for path in PACKAGE.rglob("*.py")
        for name in re.findall(r"torch\.ops\.\w+\.(_\w+)", path.read_text(encoding="utf-8"))
    }
    assert used == {
        touch.name for touch in TOUCHES if touch.name.startswith("_") and touch.library == "torch"
    }
