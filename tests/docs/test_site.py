"""The site builds without a warning, and needs nothing from elsewhere to be read."""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tinkex
from tests.docs.pages import DOCS, ROOT

pytestmark = pytest.mark.timeout(220)

# Words in examples and links to follow by hand; none is loaded by a page.
LOADED = re.compile(r'<(?:script|img|link|iframe)[^>]+(?:src|href)="(https?:)?//', re.I)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(DOCS, folder / "docs")
    (folder / "src").symlink_to(ROOT / "src")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    zensical = Path(sys.executable).parent / "zensical"
    done = subprocess.run(
        [str(zensical), "build", "--strict"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def test_every_page_is_built(site: Path) -> None:
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS).with_suffix("")
        folder = name.parent if name.name == "index" else name
        built = site / folder / "index.html"
        assert built.is_file(), name
    assert not list(site.rglob("*.py"))


def test_the_reference_has_the_docstrings(site: Path) -> None:
    page = (site / "reference" / "sdk" / "index.html").read_text(encoding="utf-8")
    assert 'id="tinkex.TrainingClient.forward_backward"' in page
    assert "its gradients are added to those already pending" in page


def test_the_reference_has_the_methods_of_private_base_classes(site: Path) -> None:
    page = (site / "reference" / "sdk" / "index.html").read_text(encoding="utf-8")
    clients = (
        tinkex.ServiceClient,
        tinkex.TrainingClient,
        tinkex.SamplingClient,
        tinkex.RestClient,
    )
    for client in clients:
        for name, _ in inspect.getmembers(client, inspect.isfunction):
            assert name.startswith("_") or f'id="tinkex.{client.__name__}.{name}"' in page, name


def test_the_reference_has_the_fields_of_values(site: Path) -> None:
    page = (site / "reference" / "types" / "index.html").read_text(encoding="utf-8")
    assert 'id="tinkex.types.SamplingParams.max_tokens"' in page
    assert 'id="tinkex.types.AdamParams.grad_clip_norm"' in page


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        found = LOADED.search(page.read_text(encoding="utf-8"))
        assert found is None, (page, found)
