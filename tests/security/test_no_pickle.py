"""Data never becomes code: nothing unpickled or evaluated, in the source or in a whole run."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import tinkex
from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer

SOURCE = Path(tinkex.__file__).parent
SITE = Path(__file__).parent / "watched_python"
ROOT = Path(__file__).parents[2]

# --- the source ---------------------------------------------------------------------------------

FORBIDDEN_MODULES = {
    "_pickle",
    "cloudpickle",
    "dill",
    "joblib",
    "jsonpickle",
    "marshal",
    "pickle",
    "pickletools",
    "shelve",
    "xmlrpc",
}
FORBIDDEN_CALLS = {
    "eval": "evaluates text",
    "exec": "runs text",
    "compile": "makes code of text",
    "__import__": "imports by a name",
    "torch.load": "unpickles",
    "torch.save": "pickles",
    "torch.hub.load": "runs code from elsewhere",
    "np.load": "may unpickle",
    "numpy.load": "may unpickle",
    "yaml.load": "may build any object",
    "os.system": "runs a shell",
    "os.popen": "runs a shell",
    "tarfile.extractall": "writes wherever the archive says",
    "tempfile.mktemp": "names a file that another may make first",
}
FORBIDDEN_METHODS = {"extractall", "extract"}
FORBIDDEN_ARGUMENTS = {"shell", "trust_remote_code", "allow_pickle"}
"""These must not be given at all, or be given as False."""


def names_of(node: ast.expr) -> str:
    """`torch.hub.load` of the expression that spells it; empty for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def wrongs(text: str) -> Iterator[str]:
    """What in a source text would make code of data, with its line."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found = module or [alias.name for alias in node.names]
            for name in found:
                if name.split(".")[0] in FORBIDDEN_MODULES:
                    yield f"{node.lineno}: imports {name}"
        elif isinstance(node, ast.Call):
            name = names_of(node.func)
            if name in FORBIDDEN_CALLS:
                yield f"{node.lineno}: {name} {FORBIDDEN_CALLS[name]}"
            elif isinstance(node.func, ast.Attribute) and node.func.attr in FORBIDDEN_METHODS:
                yield f"{node.lineno}: .{node.func.attr} writes wherever an archive says"
            for argument in node.keywords:
                is_off = isinstance(argument.value, ast.Constant) and argument.value.value is False
                if argument.arg in FORBIDDEN_ARGUMENTS and not is_off:
                    yield f"{node.lineno}: {argument.arg} is not False"
                if argument.arg == "weights_only" and is_off:
                    yield f"{node.lineno}: weights_only is False"


MODULES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_source_makes_no_code_of_data(path: Path) -> None:
    assert list(wrongs(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "import torch\ntorch.load('x')",
        "torch.load('x', weights_only=False)",
        "np.load('x', allow_pickle=True)",
        "eval('1')",
        "subprocess.run('x', shell=True)",
        "AutoModel.from_pretrained('x', trust_remote_code=True)",
        "archive.extractall(folder)",
        "yaml.load(text)",
    ],
)
def test_the_check_of_the_source_sees_what_it_should(text: str) -> None:
    assert list(wrongs(text))


def test_templates_run_in_a_sandbox_only() -> None:
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        assert "jinja2.Environment" not in text
        assert "from jinja2 import Environment" not in text


# --- a run --------------------------------------------------------------------------------------

ALLOWED = {
    "_frozen_importlib": "modules are code",
    "_frozen_importlib_external": "modules are read from their compiled files",
    "importlib": "as above",
    "runpy": "`python -m`",
    "collections": "namedtuple writes its own class",
    "dataclasses": "writes methods from the fields of a class",
    "attr": "the same, in a library",
    "typing": "annotations that are text are evaluated; they come from source files",
    "annotationlib": "the same in newer versions of Python",
    "ast": "parses source files for torch and numpy while they are imported",
    "anyio._lazyimport": "reads its own source to import lazily",
    "sqlalchemy.util": "writes decorators while it is imported",
    "sympy": "evaluates a constant while torch imports it",
    "mpmath": "writes operators while torch imports it",
}
"""Who may compile or execute, and why: all of it from source files, none of it from data."""


class Event(NamedTuple):
    """One kind of event of one process."""

    event: str
    who: str
    what: str
    program: str


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that every process started from now on reports to."""
    paths = [str(SITE), str(SOURCE.parent), str(ROOT)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("TINKEX_TEST_AUDIT", str(tmp_path / "audit"))
    return tmp_path / "audit"


def events_in(path: Path) -> list[Event]:
    return [Event(*line.split("\t")) for line in path.read_text().splitlines()]


def unexpected(events: list[Event]) -> list[Event]:
    def is_allowed(event: Event) -> bool:
        module = event.who.partition(":")[0]
        return event.event != "pickle.find_class" and any(
            module == name or module.startswith(f"{name}.") for name in ALLOWED
        )

    return [event for event in events if not is_allowed(event)]


def test_a_run_of_server_engine_and_client_unpickles_nothing(watched: Path, tmp_path: Path) -> None:
    config = ServerConfig(
        data_dir=tmp_path / "data",
        port=0,
        models=(ServedModel(name="tiny", source=str(make_tiny_model(tmp_path / "tiny"))),),
        num_threads=1,
    )
    with EmbeddedServer(config) as server:
        client = [sys.executable, "-m", "tests.security.audited_client"]
        done = subprocess.run(
            [*client, server.base_url, server.api_key, "tiny"], capture_output=True, text=True
        )
        assert done.stdout == "done\n", done.stderr
        server.stop()
        server.start()  # what was saved is read again
    events = events_in(watched)
    programs = {each.program.split()[-1] for each in events}
    assert {"tinkex.server", "tinkex.engine.process.worker"} <= programs, "all of them were watched"
    assert any("audited_client" in each.program for each in events)
    assert unexpected(events) == []


@pytest.mark.parametrize(
    "program",
    [
        "import pickle, collections; pickle.loads(pickle.dumps(collections.OrderedDict()))",
        "eval(input())",
        "exec(compile(input(), 'data', 'exec'))",
        "import marshal; marshal.loads(marshal.dumps(1))",
        "import json; json.loads('1')",
    ],
)
def test_the_watch_sees_what_it_should(program: str, watched: Path, tmp_path: Path) -> None:
    (tmp_path / "suspect.py").write_text(program)
    command = [sys.executable, "-m", "suspect"]
    subprocess.run(command, input="1", text=True, check=True, cwd=tmp_path)
    assert bool(unexpected(events_in(watched))) == ("json" not in program)
