"""Every Python example in the documentation runs, against a real server with a tiny model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tinkex.engine.tiny import make_tiny_model
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")])
MODEL = "smollm2-135m"


def examples(page: Path) -> str:
    """All Python blocks of a page, in order: they read as one program."""
    return "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S))


WITH_EXAMPLES = [page for page in PAGES if examples(page)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    folder = tmp_path_factory.mktemp("docs")
    make_tiny_model(folder / "model")
    models = (ServedModel(name=MODEL, source=str(folder / "model")),)
    with EmbeddedServer(ServerConfig(data_dir=folder / "data", port=0, models=models)) as running:
        yield running


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: page.stem)
def test_the_examples_of_a_page_run(page: Path, server: EmbeddedServer, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "TINKER_API_KEY": server.api_key,
        "TINKER_BASE_URL": server.base_url,
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", examples(page)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "an example that prints nothing shows nothing"


def test_there_are_examples_to_run() -> None:
    assert {page.stem for page in WITH_EXAMPLES} >= {"README", "training", "sampling", "telemetry"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
