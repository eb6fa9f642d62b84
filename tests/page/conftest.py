"""One real server and one real Chromium for the tests of the page; skipped where there is none.

Nothing here outlives its module: while Playwright runs, its event loop counts as running in this
thread.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

import tinkex
from tests.page.trained import Trained, start, train
from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer

ROOT = Path(__file__).parents[2]
MODEL = "tiny"
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def _setup() -> ModuleType:
    spec = importlib.util.spec_from_file_location("browser_setup", ROOT / "tools/browser_setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


expect.set_options(timeout=20_000)  # the machine may be busy


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium without a window, with a profile of its own that is thrown away."""
    path = _setup().browser()
    if path is None:
        pytest.skip("there is no Chromium: tools/browser_setup.py installs it on Debian as root")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def server(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server with the real engine and a tiny model; none is started without a browser."""
    folder = make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
    config = ServerConfig(
        data_dir=tmp_path_factory.mktemp("page-server"),
        port=0,
        models=(ServedModel(name=MODEL, source=str(folder)),),
        num_threads=1,
        drain_s=2.0,
    )
    with EmbeddedServer(config) as running:
        yield running


@pytest.fixture(scope="module")
def service(server: EmbeddedServer) -> Iterator[tinkex.ServiceClient]:
    """A client of the tenant who looks at the page."""
    with tinkex.ServiceClient(base_url=server.base_url, api_key=server.api_key) as opened:
        yield opened


@pytest.fixture(scope="module")
def trained(service: tinkex.ServiceClient) -> Trained:
    """A run of a few steps with a checkpoint of each kind."""
    return train(service, MODEL)


@pytest.fixture(scope="module")
def baseline(service: tinkex.ServiceClient) -> str:
    """The id of another run."""
    return start(service, MODEL, "baseline", 2).model_id


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """An empty page. A test fails if anything on it raises, breaks the policy or opens a dialog of
    the browser's."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(20_000)
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda dialog: (problems.append(dialog.message), dialog.dismiss()))
    page.on("console", lambda line: _note(problems, line.text))
    yield page
    context.close()
    assert problems == []


def _note(problems: list[str], text: str) -> None:
    if "Content Security Policy" in text or "TrustedHTML" in text:
        problems.append(text)


@pytest.fixture
def signed_in(page: Page, server: EmbeddedServer) -> Page:
    """The page with the server's key, showing the runs."""
    page.goto(server.base_url)
    page.get_by_label("API key").fill(server.api_key)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="Runs", exact=True).wait_for()
    return page
