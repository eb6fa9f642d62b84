"""Every Python example of the documentation, and every program in examples/, runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.conftest import Run
from tests.docs.pages import EXAMPLES, PAGES, name_of, program

WITH_EXAMPLES = [page for page in PAGES if program(page)]
pytestmark = pytest.mark.timeout(220)
JUDGES_WARN = {"10_peft.py"}  # peft says what it thinks of tied embeddings


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=name_of)
def test_the_examples_of_a_page_run(page: Path, run_python: Run) -> None:
    run_python("-c", program(page))


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_an_example_runs(example: Path, run_python: Run) -> None:
    run_python(str(example), "2", warnings="default" if example.name in JUDGES_WARN else "error")


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_an_example_is_short_and_self_contained(example: Path) -> None:
    lines = example.read_text(encoding="utf-8").splitlines()
    assert len(lines) < 80
    assert lines[0].startswith('"""'), "it begins by saying what it shows"
    assert not any("from examples" in line or "import _" in line for line in lines)


def test_every_example_is_listed() -> None:
    listed = (Path(__file__).parents[2] / "docs/how-to/examples.md").read_text(encoding="utf-8")
    for example in EXAMPLES:
        assert f"`examples/{example.name}`" in listed


def test_there_are_examples_to_run() -> None:
    stems = {page.stem for page in WITH_EXAMPLES}
    assert stems >= {"README", "index", "training", "sampling", "telemetry", "checkpoints"}
    assert len(EXAMPLES) >= 10


def test_the_first_page_takes_twenty_lines() -> None:
    page = next(page for page in PAGES if page.name == "index.md")
    assert len(program(page).splitlines()) <= 20


def test_the_reinforcement_learning_tutorial_is_as_short_as_it_says() -> None:
    example = next(example for example in EXAMPLES if example.name == "03_rl.py")
    assert len(example.read_text(encoding="utf-8").splitlines()) <= 60
