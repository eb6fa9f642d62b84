"""The pages of the documentation and what is in them."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EXAMPLES = sorted((ROOT / "examples").glob("[0-9][0-9]_*.py"))
PAGES = sorted([ROOT / "README.md", *DOCS.rglob("*.md")])
OTHERS = [
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "benchmarks" / "README.md",
]

_FENCE = re.compile(r"(<!-- example: \S+ -->\n)?^```(\w+)\n(.*?)^```", re.M | re.S)


def name_of(path: Path) -> str:
    """A page's name in the list of tests."""
    return path.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks in a language, without whole examples, which are files of their own."""
    return [
        body
        for marker, found, body in _FENCE.findall(page.read_text(encoding="utf-8"))
        if found == language and not marker
    ]


def program(page: Path) -> str:
    """All Python blocks of a page, in order: they read as one program."""
    return "\n".join(blocks(page, "python"))


def generator() -> ModuleType:
    """The module that makes pages from the code."""
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "_generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
