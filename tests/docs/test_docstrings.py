"""The examples in docstrings: sessions with `>>>` are run, fenced programs at least compile."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
import textwrap
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

SOURCE = ROOT / "src"
MODULES = sorted(
    path for path in (SOURCE / "tinkex").rglob("*.py") if "__pycache__" not in path.parts
)
WITH_SESSIONS = [path for path in MODULES if ">>>" in path.read_text(encoding="utf-8")]


def module_name(path: Path) -> str:
    name = path.relative_to(SOURCE).with_suffix("").as_posix().replace("/", ".")
    return name.removesuffix(".__init__")


@pytest.mark.parametrize("path", WITH_SESSIONS, ids=module_name)
def test_sessions_in_docstrings_give_what_they_say(path: Path) -> None:
    module = importlib.import_module(module_name(path))
    result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0
    assert result.attempted > 0


def test_programs_in_docstrings_compile() -> None:
    found = 0
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                for program in re.findall(
                    r"```python\n(.*?)```", ast.get_docstring(node) or "", re.S
                ):
                    compile(textwrap.dedent(program), str(path), "exec")
                    found += 1
    assert found > 3
