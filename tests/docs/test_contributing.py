"""The contributors' pages are true: every path and name they give exists, every word is in use."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.docs.pages import DOCS, ROOT, name_of
from tests.docs.source_names import (
    dotted_in,
    member_exists,
    members_in,
    name_exists,
    path_exists,
    paths_in,
)

CONTRIBUTING = sorted((DOCS / "contributing").glob("*.md"))
DECISIONS = sorted((DOCS / "decisions").glob("*.md"))
PAGES = [ROOT / "CONTRIBUTING.md", *CONTRIBUTING, *DECISIONS]
PACKAGE = ROOT / "src" / "tinkex"
SECTIONS = ["Context", "Decision", "Consequences", "What would change our mind"]


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_path_exists(page: Path) -> None:
    assert [each for each in sorted(paths_in(read(page))) if not path_exists(each)] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_name_exists(page: Path) -> None:
    text = read(page)
    assert [each for each in sorted(dotted_in(text)) if not name_exists(each)] == []
    assert [each for each in sorted(members_in(text)) if not member_exists(each)] == []


def test_the_map_names_paths_and_modules() -> None:
    """So that a change of how pages write them does not empty the two tests above."""
    page = read(DOCS / "contributing" / "map.md")
    assert len(paths_in(page)) > 50
    assert len(dotted_in(page)) > 80


def test_every_package_is_on_the_map() -> None:
    page = read(DOCS / "contributing" / "map.md")
    packages = sorted(file.parent for file in PACKAGE.rglob("__init__.py"))
    missing = [
        name
        for folder in packages
        if folder != PACKAGE and f"`{(name := name_of(folder))}/`" not in page
    ]
    modules = [each for each in PACKAGE.glob("*.py") if not each.stem.startswith("__")]
    missing += [name_of(each) for each in modules if f"`{name_of(each)}`" not in page]
    assert missing == []


def words_of_the_glossary() -> list[str]:
    return re.findall(r"^\*\*([^*]+)\*\*: ", read(DOCS / "contributing" / "glossary.md"), re.M)


def test_the_glossary_has_its_words() -> None:
    words = words_of_the_glossary()
    assert 20 <= len(words) <= 80
    assert sorted(set(words)) == sorted(words)


@pytest.mark.parametrize("word", words_of_the_glossary())
def test_a_word_of_the_glossary_is_used_in_the_source(word: str) -> None:
    pattern = re.compile(re.sub(r"[ -]", "[ _-]?", word.lower()))
    files = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.c")]
    assert any(
        pattern.search(file.as_posix().lower()) or pattern.search(read(file).lower())
        for file in files
    )


@pytest.mark.parametrize("page", [p for p in DECISIONS if p.stem != "index"], ids=name_of)
def test_a_decision_has_four_parts_and_fits_a_page(page: Path) -> None:
    text = read(page)
    assert re.findall(r"^## (.+)$", text, re.M) == SECTIONS
    assert 20 <= len(text.splitlines()) <= 40
    assert f"]({page.name})" in read(page.parent / "index.md")


def test_hooks_are_local_and_run_from_the_environment() -> None:
    config = yaml.safe_load(read(ROOT / ".pre-commit-config.yaml"))
    assert [repo["repo"] for repo in config["repos"]] == ["local"]
    for hook in config["repos"][0]["hooks"]:
        assert hook["language"] == "system"
        assert hook["entry"].startswith((".venv/bin/", "make ")), hook["id"]
        for word in hook["entry"].split():
            if word.endswith(".py"):
                assert (ROOT / word).is_file(), word


def test_ci_runs_the_script_on_every_python_we_claim() -> None:
    jobs = yaml.safe_load(read(ROOT / ".github" / "workflows" / "ci.yml"))["jobs"]
    assert {"run": ".ci/run"} in jobs["check"]["steps"]
    project = tomllib.loads(read(ROOT / "pyproject.toml"))["project"]
    claimed = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert jobs["check"]["strategy"]["matrix"]["python"] == claimed


def test_every_make_target_of_ci_is_documented() -> None:
    script = read(ROOT / ".ci" / "run")
    page = read(ROOT / "CONTRIBUTING.md")
    for target in re.findall(r"^make (\w+)$", script, re.M):
        assert f"make {target}" in page


def test_forms_for_issues_have_a_name_and_a_purpose() -> None:
    for form in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.md"):
        _, head, _ = read(form).split("---\n", 2)
        assert {"name", "about"} <= yaml.safe_load(head).keys(), form.name


def test_the_script_of_ci_is_a_program() -> None:
    subprocess.run(["bash", "-n", str(ROOT / ".ci" / "run")], check=True)
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o100


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("`src/tinkex/nothing.py`", {"src/tinkex/nothing.py"}),
        ("see tests/nowhere/ for it.", {"tests/nowhere/"}),
        ("`src/tinkex/*.nothing`", {"src/tinkex/*.nothing"}),
        ("`src/tinkex/server/routes/NAME.py` and `src/tinkex/version.py`", set()),
    ],
)
def test_the_check_itself_sees_wrong_paths(text: str, wrong: set[str]) -> None:
    assert {each for each in paths_in(text) if not path_exists(each)} == wrong


@pytest.mark.parametrize(
    ("name", "exists"),
    [
        ("tinkex.client", True),
        ("tinkex.client.training.TrainingClient.forward_backward", True),
        ("tinkex.wire.protobuf.encode_datums", True),
        ("tinkex.engine.options.EngineOptions.max_rank", True),
        ("tinkex.losses.builtin.BUILT_IN", True),
        ("tinkex.client.runtime.Runtime.generation", True),
        ("tinkex.nothing", False),
        ("tinkex.client.training.Nothing", False),
        ("tinkex.client.training.TrainingClient.nothing", False),
    ],
)
def test_the_check_itself_sees_wrong_names(name: str, exists: bool) -> None:
    assert name_exists(name) == exists


def test_the_check_itself_sees_wrong_members() -> None:
    found = members_in("`Engine.snapshot` and `Engine.nothing`, `make test`")
    assert {each for each in found if not member_exists(each)} == {"Engine.nothing"}
