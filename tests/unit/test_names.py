"""One word, one meaning: no two public classes of one name, and no module under a retired word."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import tinkex

PACKAGE = Path(tinkex.__file__).parent
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)

CLASHES: dict[str, set[str]] = {
    # The same thing on two sides of a border: the protocol's value and the engine's or the store's.
    "Checkpoint": {"store/checkpoints.py", "types/checkpoint.py"},
    "SampleRequest": {"engine/sampling_values.py", "types/requests.py"},
    "SampledSequence": {"engine/sampling_values.py", "types/sampling.py"},
    "Session": {"client/session.py", "store/sessions.py"},
    "Tokenizer": {"tokenizers/tokenizer.py", "types/model_input.py"},
}

_RETIRED = """
background begun_worker collecting company decoding doorstep early ended engines failures fairness
folders head heads holder keeper lanes lora_together model_work observe order pages plan prepared
prompt_line prompt_order residency room row_lora row_plan sample_jobs sampler_host saving
setting_values space spinning standing step_rows storage suspects sweeper table tensor_file tiny
together trimming turns usage waiting whole_runner
"""
RETIRED = frozenset(_RETIRED.split())
"""Names that modules had and lost: each meant several things, or nothing to a newcomer."""

ROOT = Path(__file__).parents[2]
_TEXTS = (
    *("src/**/*.py", "src/tinkex/web/static/*.js", "src/tinkex/web/static/*.html"),
    *("docs/**/*.md", "deploy/**/*.yaml", "deploy/**/*.md", "*.md"),
)
_UNWANTED = """
whoever nobody somebody everybody anybody errand errands doorstep patience patiently
told asked hear hears heard
"""
TEST_NAME = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
UNWANTED = re.compile(rf"\b({'|'.join(_UNWANTED.split())}|in vain)\b", re.IGNORECASE)


def public_classes() -> dict[str, set[str]]:
    """The modules that define each public class."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in MODULES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].add(path.relative_to(PACKAGE).as_posix())
    return dict(found)


def test_no_two_public_classes_have_one_name() -> None:
    clashes = {name: where for name, where in public_classes().items() if len(where) > 1}
    new = {name: where for name, where in clashes.items() if where - CLASHES.get(name, set())}
    assert new == {}, "choose another name for the new class"


def test_the_list_of_clashes_only_shrinks() -> None:
    found = public_classes()
    gone = {name for name, where in CLASHES.items() if where - found.get(name, set())}
    assert gone == set(), "these clash no longer as listed: shorten CLASHES"
    assert len(CLASHES) <= 15


def test_no_module_has_a_retired_name() -> None:
    named = {path: path.parent.name if path.stem == "__init__" else path.stem for path in MODULES}
    wrong = [str(path.relative_to(PACKAGE)) for path, name in named.items() if name in RETIRED]
    assert wrong == [], "the word was retired: docs/contributing/glossary.md has those in use"


def test_texts_name_tenants_callers_and_tasks_by_what_they_are() -> None:
    paths = [path for pattern in _TEXTS for path in ROOT.glob(pattern)]
    assert len(paths) > 500
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in paths
        for match in UNWANTED.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_names_of_tests_have_none_of_these_words_either() -> None:
    names = [
        name
        for path in (ROOT / "tests").rglob("*.py")
        for name in TEST_NAME.findall(path.read_text(encoding="utf-8"))
    ]
    assert len(names) > 2000
    assert [name for name in names if UNWANTED.search(name.replace("_", " "))] == []
