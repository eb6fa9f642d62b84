"""The house holds: imports go one way, one module reads the environment, no file runs away.

Every module is parsed, none is imported. `if TYPE_CHECKING:` imports count too: an arrow is an
arrow even if only a type checker walks along it.
"""

import ast
from pathlib import Path

import pytest

import tinkex

PACKAGE = Path(tinkex.__file__).parent
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)
GENERATED = {path for path in MODULES if path.stem.endswith("_pb2")}
MAX_LINES = 400
BASE = {"errors", "version"}
MAY_IMPORT = {
    "errors": set(),
    "child_environment": set(),
    "crashpoints": {"errors"},
    "fair_queue": set(),
    "stop_signals": set(),
    "version": set(),
    "commit": set(),
    "telemetry": {*BASE},
    "setting_parsers": {*BASE, "telemetry"},
    "credentials": {*BASE, "telemetry"},
    "config": {*BASE, "credentials", "setting_parsers", "telemetry"},
    "files": {"errors", "crashpoints"},
    "merging": {"errors", "crashpoints", "files"},
    "depot": {"errors", "crashpoints", "files"},
    "types": {*BASE},
    "losses": {*BASE},
    "wire": {*BASE, "types"},
    "regularizers": {*BASE, "types", "telemetry", "losses"},
    "tokenizers": {*BASE, "config"},
    "client": {*BASE, "types", "wire", "telemetry", "config", "regularizers", "tokenizers"},
    "auth": {*BASE, "client", "config"},
    "compat": {*BASE, "client", "config", "types"},
    "engine": {
        *BASE,
        "types",
        "telemetry",
        "child_environment",
        "crashpoints",
        "depot",
        "fair_queue",
        "files",
        "losses",
    },
    "store": {*BASE, "types", "wire", "telemetry", "crashpoints"},
    "scheduler": {
        *BASE,
        "types",
        "wire",
        "telemetry",
        "engine",
        "store",
        "crashpoints",
        "depot",
        "fair_queue",
        "files",
    },
    "launch": {*BASE},
    "server": {
        *BASE,
        "launch",
        "child_environment",
        "stop_signals",
        "crashpoints",
        "depot",
        "types",
        "wire",
        "telemetry",
        "config",
        "scheduler",
        "engine",
        "store",
        "files",
        "merging",
        "tokenizers",
        "web",
    },
    "web": set(),
    "cli": {
        *BASE,
        "commit",
        "stop_signals",
        "crashpoints",
        "types",
        "wire",
        "telemetry",
        "config",
        "credentials",
        "client",
        "server",
        "tokenizers",
        "web",
    },
    "__main__": {"cli"},
}
"""For each part of the package, the other parts it may know."""

LAYERS = {
    "engine": [
        {"busy_lock", "errors", "interface", "machine_memory", "options", "sampling_values"},
        {"validation", "loss_plugins", "custom_loss"},
        {"ops"},
        {"attention", "lora"},
        {"model"},
        {"convert", "training", "sampling"},
        {"checkpoint", "native"},
        {"runner_choice"},
        {"memory"},
        {"base_model"},
        {"fingerprint", "in_process", "null_numbers"},
        {"null", "torch_engine"},
        {"process"},
        {"remote"},
    ],
    "scheduler": [
        {
            "busiest_time",
            "config",
            "operation_bodies",
            "convert",
            "slot_load",
            "slot_wakeups",
            "work_counters",
        },
        {"slot_overview"},
        {"placement", "queues", "supervisor"},
        {"adapters", "queue_counts", "rebalancing"},
        {"running"},
        {"operation_cancelling", "shared"},
        {"batch_runner", "model_moves"},
        {"driver"},
        {"slot"},
        {"sample_cancelling", "workers"},
        {"scheduler"},
    ],
    "server": [
        {"config", "errors"},
        {"settings", "data_folder", "http"},
        {"gate", "live_feed", "open_folders", "result_waiters"},
        {"models"},
        {"leadership", "listen", "services"},
        {"monitoring", "standby", "submit", "upkeep"},
        {"routes", "admin", "openai"},
        {"app"},
        {"process"},
        {"embedded"},
    ],
}
"""Inside these parts: modules and subpackages, lowest first. Each may import what is below it; two
of one layer do not import each other, except in the lowest one."""


def part_of(module: str) -> str:
    """`tinkex.client.retry` belongs to `client`; the package itself is ''."""
    return module.split(".")[1] if "." in module else ""


def name_of(path: Path) -> str:
    parts = ["tinkex", *path.relative_to(PACKAGE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, text: str | None = None) -> set[str]:
    """Every module of this package that a file imports, wherever in the file it does so."""
    tree = ast.parse(path.read_text(encoding="utf-8") if text is None else text)
    package = (
        name_of(path).split(".") if path.name == "__init__.py" else name_of(path).split(".")[:-1]
    )
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            names = {f"{origin}.{alias.name}" for alias in node.names}
            is_layered = origin.removeprefix("tinkex.") in LAYERS
            found |= names if origin == "tinkex" or is_layered else {origin}
    return {name for name in found if name == "tinkex" or name.startswith("tinkex.")}


def wrong_arrows(path: Path, text: str | None = None) -> list[str]:
    own = part_of(name_of(path))
    allowed = MAY_IMPORT[own] | {own}
    return [name for name in sorted(imports_of(path, text)) if part_of(name) not in allowed]


def place_of(module: str) -> tuple[str, str] | None:
    """`tinkex.engine.lora.adapter` is ("engine", "lora"); None outside the layered parts."""
    names = module.split(".")
    return (names[1], names[2]) if len(names) > 2 and names[1] in LAYERS else None


def level_of(part: str, room: str) -> int:
    return next(i for i, rooms in enumerate(LAYERS[part]) if room in rooms)


def imports_from_above(path: Path, text: str | None = None) -> list[str]:
    """What a module imports that is not below it, in the same part."""
    own = place_of(name_of(path))
    if own is None or own[1] == "__main__":
        return []
    part, room = own
    others = {name: place_of(name) for name in imports_of(path, text)}
    return sorted(
        name
        for name, other in others.items()
        if other is not None
        and other[0] == part
        and other[1] != room
        and level_of(*other) >= level_of(part, room) > 0
    )


def environment_reads(text: str) -> list[int]:
    """The lines on which `os.environ`, `os.getenv` or the like are touched.

    `{**os.environ, ...}` is no look at a variable: it hands everything on to a child process.
    """
    names = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
    tree = ast.parse(text)
    dicts = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    handed_on = [
        v for each in dicts for k, v in zip(each.keys, each.values, strict=True) if k is None
    ]
    lines = []
    for node in ast.walk(tree):
        is_attribute = (
            isinstance(node, ast.Attribute)
            and node.attr in names
            and isinstance(node.value, ast.Name)
            and node.value.id == "os"
            and node not in handed_on
        )
        is_import = isinstance(node, ast.ImportFrom) and node.module == "os"
        if is_attribute or (is_import and names & {alias.name for alias in node.names}):
            lines.append(node.lineno)
    return lines


def relative(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", [p for p in MODULES if part_of(name_of(p))], ids=relative)
def test_imports_point_the_allowed_way(path):
    assert part_of(name_of(path)) in MAY_IMPORT, "a new part: write its arrows down in MAY_IMPORT"
    assert wrong_arrows(path) == []


@pytest.mark.parametrize("path", [p for p in MODULES if place_of(name_of(p))], ids=relative)
def test_imports_inside_a_part_point_down(path):
    assert imports_from_above(path) == []


@pytest.mark.parametrize("part", LAYERS)
def test_every_module_has_its_layer(part):
    there = {p.stem for p in (PACKAGE / part).iterdir() if p.suffix == ".py" or p.is_dir()}
    listed = [room for rooms in LAYERS[part] for room in rooms]
    assert sorted(there - {"__init__", "__main__", "__pycache__"}) == sorted(listed)


def test_arrows_make_no_circle():
    def reachable(part, seen=()):
        assert part not in seen, f"circle: {' -> '.join((*seen, part))}"
        for other in MAY_IMPORT[part]:
            reachable(other, (*seen, part))

    for part in MAY_IMPORT:
        reachable(part)


@pytest.mark.parametrize(
    ("part", "forbidden"),
    [
        ("client", {"server", "scheduler", "engine", "store"}),
        ("engine", {"server", "store", "scheduler", "client", "wire"}),
        ("wire", {"client", "server", "store", "engine", "scheduler"}),
        ("types", {"wire", "client", "server"}),
        ("store", {"scheduler", "engine", "server", "client"}),
        ("scheduler", {"server", "client"}),
        ("server", {"client", "cli"}),
        ("cli", {"engine", "store", "scheduler"}),
    ],
)
def test_table_of_arrows_says_what_the_design_says(part, forbidden):
    assert not MAY_IMPORT[part] & forbidden


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_only_config_reads_the_environment(path):
    if path != PACKAGE / "config" / "environment.py":
        assert environment_reads(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", sorted(set(MODULES) - GENERATED), ids=relative)
def test_no_file_runs_away(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def test_no_drawer_for_odds_and_ends():
    drawers = {"utils", "util", "helpers", "misc", "common"}
    assert [relative(path) for path in MODULES if path.stem in drawers] == []


@pytest.mark.parametrize("path", sorted(set(MODULES) - GENERATED), ids=relative)
def test_every_module_says_what_it_is(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree) or not tree.body


@pytest.mark.parametrize(
    ("file", "text", "wrong"),
    [
        ("client/x.py", "from tinkex.server import app", ["tinkex.server.app"]),
        (
            "client/x.py",
            "def f():\n    import tinkex.engine.lora.adapter",
            ["tinkex.engine.lora.adapter"],
        ),
        ("client/x.py", "from ..store import log", ["tinkex.store"]),
        ("client/x.py", "from tinkex import server, types", ["tinkex.server"]),
        ("client/x.py", "from . import retry\nfrom .retry import x\nimport os", []),
        ("client/__init__.py", "from .retry import x", []),
        ("engine/x.py", "if TYPE_CHECKING:\n    from tinkex.store import y", ["tinkex.store"]),
    ],
)
def test_the_check_itself_sees_wrong_arrows(file, text, wrong):
    assert wrong_arrows(PACKAGE / file, text) == wrong


@pytest.mark.parametrize(
    ("file", "text", "wrong"),
    [
        (
            "engine/lora/x.py",
            "from tinkex.engine.model.decoder import x",
            ["tinkex.engine.model.decoder"],
        ),
        (
            "engine/lora/x.py",
            "from tinkex.engine import torch_engine",
            ["tinkex.engine.torch_engine"],
        ),
        ("engine/lora/x.py", "from tinkex.engine.attention import x", ["tinkex.engine.attention"]),
        ("engine/lora/x.py", "from tinkex.engine.lora.adapter import x", []),
        ("engine/lora/x.py", "from tinkex.engine.ops.linear import x", []),
        ("engine/interface.py", "from tinkex.engine.errors import x", []),
    ],
)
def test_the_check_itself_sees_imports_from_above(file, text, wrong):
    assert imports_from_above(PACKAGE / file, text) == wrong


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("import os\nos.environ['X']", 1),
        ("import os\ndef f(): return os.getenv('X')", 1),
        ("from os import environ", 1),
        ("import os\nchild = {**os.environ, 'X': '1'}", 0),
        ("import os\nchild = {'X': os.environ}", 1),
        ("import os\nos.path.join('environ')", 0),
        ("def f(environ): return environ['X']", 0),
    ],
)
def test_the_check_itself_sees_the_environment(text, count):
    assert len(environment_reads(text)) == count
