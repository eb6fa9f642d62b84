"""Names of the source as the contributors' pages write them, looked up without an import."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.docs.pages import ROOT

SOURCE = ROOT / "src"
FOLDERS = ("src", "tests", "docs", "benchmarks", "tools", "examples", r"\.ci", r"\.github")
_PATH = re.compile(rf"(?<![\w./-])(?:{'|'.join(FOLDERS)})/[\w./*-]*")
_DOTTED = re.compile(r"(?<![\w./-])tinkex(?:\.[A-Za-z_]\w*)+")
_MEMBER = re.compile(r"[A-Z][a-z]\w+\.[A-Za-z_]\w*")
_FILES = {"db", "err", "invalid", "toml"}
"""Endings of dotted words that are files or addresses, not names of ours."""


def paths_in(text: str) -> set[str]:
    """The repository's paths a text names; those with a part in capitals stand for any name."""
    found = {each.rstrip(".") for each in _PATH.findall(text)}
    return {each for each in found if not re.search(r"[A-Z]{2,}(?=[./]|$)", Path(each).stem)}


def dotted_in(text: str) -> set[str]:
    """The dotted names of ours in the code spans of a text."""
    spans = re.findall(r"`([^`\n]+)`", text)
    found = {name for span in spans for name in _DOTTED.findall(span)}
    return {name for name in found if name.rpartition(".")[2] not in _FILES}


def members_in(text: str) -> set[str]:
    """Code spans that are a class of ours and one of its members: `Engine.snapshot`."""
    spans = re.findall(r"`([^`\n]+)`", text)
    return {span for span in spans if _MEMBER.fullmatch(span)}


def member_exists(span: str) -> bool:
    """Whether a class of that name, anywhere in the source, has that member."""
    owner, _, member = span.partition(".")
    files = (SOURCE / "tinkex").rglob("*.py")
    return any(_is_defined([owner, member], file) for file in files)


def path_exists(path: str) -> bool:
    """Whether a path, or anything that its stars stand for, is in the repository."""
    return any(ROOT.glob(path.rstrip("/"))) if "*" in path else (ROOT / path).exists()


def name_exists(dotted: str) -> bool:
    """Whether the name is a package, a module, or something defined in one."""
    names = dotted.split(".")
    for count in range(len(names), 0, -1):
        file = _module_file(names[:count])
        if file is not None:
            return _is_defined(names[count:], file)
    return False


def _module_file(names: list[str]) -> Path | None:
    base = SOURCE.joinpath(*names)
    candidates = (base.with_suffix(".py"), base / "__init__.py")
    return next((file for file in candidates if file.is_file()), None)


def _is_defined(names: list[str], file: Path) -> bool:
    scope: ast.Module | ast.ClassDef | None = _tree(file)
    for name in names:
        if scope is None:
            return False
        found = next((node for node in scope.body if name in _names_of(node)), None)
        if found is None and name not in _attributes_of(scope):
            return False
        scope = found if isinstance(found, ast.ClassDef) else None
    return True


def _attributes_of(scope: ast.Module | ast.ClassDef) -> set[str]:
    """What the methods of a class set on `self`."""
    if isinstance(scope, ast.Module):
        return set()
    return {
        node.attr
        for node in ast.walk(scope)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def _names_of(node: ast.stmt) -> set[str]:
    """What a statement defines or, in a module that passes names on, imports."""
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return {node.name}
        case ast.Assign():
            return {each.id for each in node.targets if isinstance(each, ast.Name)}
        case ast.AnnAssign():
            return {node.target.id} if isinstance(node.target, ast.Name) else set()
        case ast.ImportFrom():
            return {each.asname or each.name for each in node.names}
    return set()


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))
