"""Nothing is missing: settings, options, codes, routes, public names, links; and all is current."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import click
import pytest

import tinkex
from tests.docs.pages import DOCS, OTHERS, PAGES, ROOT, generator, name_of
from tinkex.config import Config
from tinkex.server.http.openai_paths import is_openai_path
from tinkex.server.settings import settings

PUBLIC_MODULES = (
    "tinkex",
    "tinkex.types",
    "tinkex.errors",
    "tinkex.telemetry",
    "tinkex.losses",
    "tinkex.regularizers",
)


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    return generator()


def read(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def test_pages_made_from_code_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(DOCS / "_generate.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_setting_is_documented() -> None:
    page = read("reference/settings.md")
    for each in Config.fields():
        assert f"`{each.name}`" in page
        assert all(f"`{variable}`" in page for variable in each.env)
    for setting in settings():
        assert f"`{setting.flag}`" in page
        assert f"`{setting.variable}`" in page


def test_every_command_and_option_is_documented(generate: ModuleType) -> None:
    from tinkex.cli.main import root

    page = read("reference/cli.md")
    paths = [path for path, _ in generate.helps(root)]
    assert len(paths) > 15
    for path in paths:
        assert f"# {path}\n" in page
        command, context = root, click.Context(root, info_name="tinkex")
        for word in path.split()[1:]:
            assert isinstance(command, click.Group)
            command = command.get_command(context, word) or pytest.fail(path)
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert option.opts[0] in page, f"{path} {option.opts[0]}"


def test_repository_address_is_set_in_one_place(generate: ModuleType) -> None:
    settings = generate.SITE.read_text()
    assert "repo_url" not in generate.with_repository(settings, "https://example.invalid/tinkex")
    for url in ("https://git.example.org/a/tinkex", "https://git.example.org/b/tinkex"):
        settings = generate.with_repository(settings, url)
        assert [line for line in settings.splitlines() if "repo_url" in line] == [
            f"repo_url: {url}"
        ]


def test_every_error_code_has_an_entry(generate: ModuleType) -> None:
    page = read("reference/errors.md")
    source = "\n".join(path.read_text() for path in generate.SOURCE.rglob("*.py"))
    written = set(re.findall(r'\bcode ?= ?"([a-z][a-z-]+)"', source))
    assert len(written) > 60
    for code in written | set(generate.error_codes()):
        assert f"## {code}\n" in page, code


def test_every_hint_of_a_class_is_on_its_entry() -> None:
    from tinkex import errors

    page = " ".join(read("reference/errors.md").replace("&lt;", "<").replace("\\", "").split())
    for name in errors.__all__:
        kind = getattr(errors, name)
        if inspect.isclass(kind) and issubclass(kind, errors.TinkexError) and kind.default_hint:
            assert " ".join(kind.default_hint.split()) in page, name


def test_every_route_without_a_key_is_on_the_page_about_security(generate: ModuleType) -> None:
    page = read("explanation/security.md")
    table = page.partition("## Routes without authentication")[2].partition("\n## ")[0]
    listed = set(re.findall(r"`GET (/[^`]*)`", table))
    guarded = {"key", "**operator token**"}
    open_ = {path for path, _, access, _ in generate.routes() if access not in guarded}
    assert listed == open_


def test_a_route_without_a_key_answers_and_others_refuse(
    environment: dict[str, str], generate: ModuleType
) -> None:
    import httpx

    for path, methods, access, _ in generate.routes():
        url = environment["TINKER_BASE_URL"] + re.sub(r"\{[^}]*\}", "x", path)
        for method in methods:
            answer = httpx.request(method, url, timeout=20)
            refused = {
                "**signed link**": {"unauthenticated", "bad-link"},
                "**operator token**": {"not-an-operator"},
            }.get(access, {"unauthenticated", "invalid_api_key"})
            if access == "**no key**":
                assert answer.status_code == 200, path
            else:
                assert answer.status_code == 401, path
                error = answer.json()
                code = error["error"]["code"] if is_openai_path(path) else error["code"]
                assert code in refused


def test_every_public_name_says_what_the_caller_gets() -> None:
    silent = []
    for module_name in PUBLIC_MODULES:
        module = importlib.import_module(module_name)
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                silent += undocumented(f"{module_name}.{name}", value)
    assert not silent, silent


def undocumented(path: str, value: object) -> list[str]:
    """The names at and below a public one that say nothing, or no whole sentence."""
    if not getattr(value, "__module__", "").startswith("tinkex"):
        return []  # another name of a type that is not ours
    found = [] if _says(value) else [path]
    if inspect.isclass(value):
        for name, member in vars(value).items():
            is_method = inspect.isfunction(member) or isinstance(
                member, property | classmethod | staticmethod
            )
            if is_method and not name.startswith("_"):
                inner = member.__func__ if hasattr(member, "__func__") else member
                found += [] if _says(inner) else [f"{path}.{name}"]
    return found


def _says(value: object) -> bool:
    text = (getattr(value, "__doc__", None) or "").strip()
    # A struct without words of its own has its fields as docstring.
    return bool(text) and not text.startswith(f"{getattr(value, '__name__', ' ')}(")


_MODULES = {"auth", "compat", "errors", "telemetry", "types"}


def test_every_public_name_is_in_the_reference() -> None:
    pages = "".join(read(f"reference/{name}.md") for name in ("sdk", "types", "telemetry"))
    for name in (*tinkex.__all__, *tinkex.types.__all__):
        if name.startswith("_") or name in _MODULES or name == "TinkerError":
            continue
        assert re.search(rf"^::: tinkex(\.\w+)?\.{name}$", pages, re.M), name


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=name_of)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        linked = page.parent / name if name else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor and linked.suffix == ".md":
            assert anchor in anchors(linked), f"{page.name} links to {target}"


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", each).strip().lower().replace(" ", "-") for each in headings}


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M))
    assert listed == {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}


def test_nothing_is_fetched_from_elsewhere() -> None:
    for page in DOCS.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"!\[[^\]]*\]\(https?:|<script|<iframe|@import", text), page.name
    for picture in DOCS.rglob("*.svg"):
        text = picture.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http" not in text
        assert len(text) < 20_000


def test_the_readme_opens_with_the_two_commands() -> None:
    opening = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:6]
    assert any(line.startswith("make demo") for line in opening)
    assert any(line.startswith("make test") for line in opening)
