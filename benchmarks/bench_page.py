"""Is the server's page small, soon there and smooth?

In Chromium, on a server with the null engine; what the page reads of runs is made up by this
program, so that only the page is measured.

- Bytes of all its files, compressed, over 150 kB.
- First contentful paint with an empty cache, over one second.
- 1,000 runs: the 95th percentile of frame times while the table is filtered, sorted and scrolled,
  over 50 ms.
- 100,000 points: the same while two curves are zoomed and moved by the keyboard.
"""

from __future__ import annotations

import importlib.util
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._measure import ROOT, report, run_questions, summary
from playwright.sync_api import Page, Route, sync_playwright
from tests.server.driving import null_config

from tinkex.server.embedded import EmbeddedServer
from tinkex.web import files

MAX_BYTES, MAX_PAINT_MS, MAX_FRAME_MS = 150_000, 1_000.0, 50.0
NUM_RUNS, NUM_POINTS, PAGE = 1_000, 100_000, 20_000
NOW = "2026-01-01T00:00:00Z"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
WATCH_FRAMES = """() => {
    window.frames_ = [];
    let last = performance.now();
    const note = (now) => { frames_.push(now - last); last = now; requestAnimationFrame(note); };
    requestAnimationFrame(note);
}"""


def size(_rounds: int) -> bool:
    number = sum(len(file.gzipped) for name in files.names() if (file := files.read(name)))
    return report("page: compressed bytes over 150 kB", number / MAX_BYTES, at_most=1, bytes=number)


def first_paint(rounds: int) -> bool:
    paint = (
        "() => performance.getEntriesByName('first-contentful-paint').map(each => each.startTime)"
    )
    found = []
    for _ in range(rounds):
        with opened() as page:  # with a new profile, so nothing is cached
            page.locator("h1").wait_for()
            page.wait_for_function(f"({paint})().length")
            found += page.evaluate(paint)
    median = statistics.median(found)
    return report("page: first paint over 1 s", median / MAX_PAINT_MS, at_most=1, ms=summary(found))


def many_runs(rounds: int) -> bool:
    found = []
    for _ in range(rounds):
        with opened() as page:
            sign_in(page)
            page.get_by_text("1,000 runs").wait_for()
            page.evaluate(WATCH_FRAMES)
            page.get_by_label("Filter runs").press_sequentially("run 1", delay=60)
            page.get_by_label("Filter runs").fill("")
            for name in ("Loss", "Steps", "Run"):
                page.get_by_role("button", name=name, exact=True).click()
            for _ in range(10):
                page.mouse.wheel(0, 400)
                page.wait_for_timeout(50)
            found.append(slow_frame(page))
    return smooth("page: p95 frame of 1,000 runs over 50 ms", found)


def many_points(rounds: int) -> bool:
    found = []
    for _ in range(rounds):
        with opened() as page:
            sign_in(page)
            page.evaluate("location.hash = '#/runs/run-0?with=run-1'")
            page.locator(".chart[aria-label*='run 1: 50,000 points']").wait_for(timeout=60_000)
            page.locator(".chart").focus()
            page.evaluate(WATCH_FRAMES)
            for key in "++++" + "<>" * 8 + "---0":
                page.keyboard.press({"<": "ArrowLeft", ">": "ArrowRight"}.get(key, key))
                page.wait_for_timeout(50)
            found.append(slow_frame(page))
    return smooth("page: p95 frame of 100,000 points over 50 ms", found)


def smooth(question: str, frames_ms: list[float]) -> bool:
    return report(
        question,
        statistics.median(frames_ms) / MAX_FRAME_MS,
        at_most=1,
        p95_ms=summary(frames_ms),
    )


def slow_frame(page: Page) -> float:
    """The 95th percentile of the frame times since they are watched, in milliseconds."""
    frames = sorted(page.evaluate("frames_"))
    return float(frames[int(0.95 * (len(frames) - 1))])


@contextmanager
def opened() -> Iterator[Page]:
    """The page in a new browser, with made-up runs behind it."""
    spec = importlib.util.spec_from_file_location("setup", ROOT / "tools/browser_setup.py")
    assert spec is not None
    assert spec.loader is not None
    setup = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(setup)
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedServer(null_config(Path(folder))) as server,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=setup.browser(), args=ARGUMENTS)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.add_init_script(f"window.benchKey = {server.api_key!r}")
        page.route("**/api/v1/training_runs**", answer)
        page.goto(server.base_url)
        yield page
        browser.close()


def sign_in(page: Page) -> None:
    page.get_by_label("API key").fill(page.evaluate("benchKey"))
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Runs", exact=True).wait_for()


def answer(route: Route) -> None:
    """What a server with many runs and points would answer."""
    url = urlsplit(route.request.url)
    asked = {name: values[0] for name, values in parse_qs(url.query).items()}
    parts = url.path.removeprefix("/api/v1/training_runs").strip("/").split("/")
    if parts == [""]:
        body = list_of_runs(int(asked["limit"]), int(asked["offset"]))
    elif parts[1:] == ["metrics"]:
        body = points(int(asked.get("after", 0)))
    elif parts[1:] == ["checkpoints"]:
        body = {"checkpoints": []}
    else:
        body = run(int(parts[0].removeprefix("run-")))
    route.fulfill(body=json.dumps(body), content_type="application/json")


def list_of_runs(limit: int, offset: int) -> dict[str, Any]:
    numbers = range(offset, min(offset + limit, NUM_RUNS))
    cursor = {"offset": offset, "limit": limit, "total_count": NUM_RUNS}
    return {"training_runs": [run(each) for each in numbers], "cursor": cursor}


def run(number: int) -> dict[str, Any]:
    return {
        "training_run_id": f"run-{number}",
        "name": f"run {number}",
        "base_model": "null",
        "last_request_time": NOW,
        "status": {"state": "idle", "reason": None},
        "tags": {"team": "bench"},
        "usage": {"tokens": 1000 * number, "optimizer_steps": number},
        "latest": {"loss_per_token": 2 + math.sin(number), "step": number},
        "spark": [3 + math.sin(number + each / 5) for each in range(32)],
    }


def points(after: int) -> dict[str, Any]:
    most = NUM_POINTS // 2  # of each of the two runs
    index = list(range(after + 1, min(after + PAGE, most) + 1))
    columns = dict.fromkeys(("index", "step", "time", "tokens"), index)
    loss = [3 / (1 + each / 5000) + 0.2 * math.sin(each * 12.9898) for each in index]
    return {
        "names": ["loss_per_token"],
        "columns": {**columns, "loss_per_token": loss},
        "cursor": after + len(index),
        "has_more": after + len(index) < most,
        "thinned": False,
    }


QUESTIONS = {
    "size": size,
    "first paint": first_paint,
    "1,000 runs": many_runs,
    "100,000 points": many_points,
}

if __name__ == "__main__":
    sys.exit(run_questions(__doc__, QUESTIONS, rounds=3))
