"""The page in a real browser: what a person does with it, on a real server."""

from __future__ import annotations

import re
import tarfile
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, Route, expect

import tinkex
from tests.page.conftest import MODEL
from tests.page.trained import HOSTILE, Trained, step
from tinkex.server.embedded import EmbeddedServer

SIZES = {"phone": (400, 800), "desk": (1280, 900), "wall": (3840, 2160)}


def go(page: Page, view: str) -> None:
    page.evaluate("view => { location.hash = view; }", f"#/{view}")


def run_view(trained: Trained) -> str:
    return f"runs/{quote(trained.run_id, safe='')}"


def choose(page: Page, checkpoint: str, action: str) -> None:
    page.get_by_label(f"Actions for {checkpoint}").select_option(label=action)


def test_a_key_is_tried_kept_in_the_session_and_nowhere_else(
    page: Page, server: EmbeddedServer
) -> None:
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto(server.base_url)
    page.get_by_label("API key").fill("tml-wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("not known here")
    page.get_by_label("API key").fill(server.api_key)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
    kept = page.evaluate("[JSON.stringify(sessionStorage), JSON.stringify(localStorage)]")
    assert server.api_key in kept[0]
    assert server.api_key not in kept[1]
    assert not [url for url in requested if server.api_key in url]
    assert {url.split("/")[2] for url in requested} == {server.base_url.split("/")[2]}
    page.reload()
    expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    assert page.evaluate("sessionStorage.length") == 0
    expect(page.get_by_label("API key")).to_be_visible()


def test_a_run_is_watched_while_it_trains(
    signed_in: Page, service: tinkex.ServiceClient, server: EmbeddedServer
) -> None:
    page = signed_in
    training = service.create_lora_training_client(MODEL, rank=4, user_metadata={"name": "watched"})
    step(training)
    expect(page.get_by_role("link", name="watched")).to_be_visible()
    page.get_by_role("link", name="watched").click()
    chart = page.locator(".chart")
    expect(chart).to_have_attribute("aria-label", re.compile(r"watched: 1 point"))
    for number in (2, 3):
        step(training)
        expect(chart).to_have_attribute("aria-label", re.compile(rf"watched: {number} points"))
    expect(page.get_by_label("Operations, newest first")).to_contain_text("Optimizer step")
    expect(page.locator(".stat").filter(has_text="Steps")).to_contain_text("3")
    server.stop()
    expect(page.get_by_text("Reconnecting")).to_be_visible()
    server.start()
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    step(training)
    expect(chart).to_have_attribute("aria-label", re.compile(r"watched: 4 points"))


def test_curves_of_two_runs_and_their_controls(
    signed_in: Page, trained: Trained, baseline: str
) -> None:
    page = signed_in
    go(page, run_view(trained))
    chart = page.locator(".chart")
    expect(chart).to_have_attribute("aria-label", re.compile("3 points"))
    page.get_by_role("button", name="Compare").click()
    page.get_by_label("Filter runs").fill(baseline)
    page.get_by_role("dialog").get_by_role("button", name="Compare").click()
    expect(chart).to_have_attribute("aria-label", re.compile("3 points.*baseline: 2 points"))
    page.get_by_label("Metric").select_option("learning_rate")
    expect(chart).to_have_attribute("aria-label", re.compile("learning_rate by step"))
    page.get_by_label("Horizontal axis").select_option("tokens")
    page.get_by_label("Horizontal axis").select_option("elapsed")
    expect(chart).to_have_attribute("aria-label", re.compile("learning_rate by elapsed"))
    page.get_by_label("Horizontal axis").select_option("tokens")
    page.get_by_label("Log scale").check()
    page.get_by_label("Smoothing").fill("0.9")
    expect(chart).to_have_attribute("aria-label", re.compile("learning_rate by tokens"))
    chart.focus()
    for key in ("+", "ArrowRight", "0"):
        page.keyboard.press(key)
    page.get_by_text("Values as a table").click()
    expect(page.get_by_role("cell", name="0.01").first).to_be_visible()
    page.reload()
    expect(chart).to_have_attribute("aria-label", re.compile("baseline: 2 points"))
    page.get_by_role("button", name="Remove baseline").click()
    expect(chart).not_to_have_attribute("aria-label", re.compile("baseline"))


def test_hostile_names_stay_text_everywhere(signed_in: Page, trained: Trained) -> None:
    page = signed_in
    expect(page.get_by_role("link", name=HOSTILE)).to_be_visible()
    go(page, run_view(trained))
    expect(page.get_by_role("heading", name=HOSTILE)).to_be_visible()
    page.get_by_role("button", name="Name and tags").click()
    page.get_by_label("Tags, such as").fill(f"team={HOSTILE}, baseline")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text(f"team={HOSTILE}")).to_be_visible()
    go(page, f"playground?a={quote(HOSTILE)}")
    expect(page.get_by_role("combobox", name="Model A")).to_have_value(HOSTILE)
    assert page.locator("img[src=x]").count() == 0


def test_chat_compared_with_a_checkpoint(signed_in: Page, trained: Trained) -> None:
    page = signed_in
    go(page, f"playground?b={quote(trained.sampler)}")
    expect(page.get_by_role("combobox", name="Model B")).to_have_value(trained.sampler)
    page.get_by_label("Maximum tokens").fill("8")
    page.get_by_role("textbox", name="Prompt").fill(f"Hello {HOSTILE}")
    page.keyboard.press("Enter")
    for pane in ("A", "B"):
        region = page.get_by_role("region", name=f"Pane {pane}")
        expect(region.get_by_text(re.compile("perplexity"))).to_be_visible()
        assert region.locator(".answer .token").count() >= 1
    page.locator(".answer .token").first.focus()
    expect(page.get_by_role("tooltip")).to_contain_text("logprob")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Copy as Python").click()
    code = page.get_by_role("dialog").inner_text()
    assert "OpenAI(base_url=" in code
    assert "curl -N" in code
    assert "tml-" not in code
    assert page.locator("img[src=x]").count() == 0


def test_a_runs_page_says_what_it_trains_and_used(
    signed_in: Page, trained: Trained, service: tinkex.ServiceClient
) -> None:
    page = signed_in
    go(page, run_view(trained))
    facts = page.locator(".panel").filter(has_text="Hyperparameters")
    expect(facts).to_contain_text("LoRA rank4")
    expect(facts).to_contain_text("LoRA alpha32")
    expect(facts).to_contain_text("attention, MLP, unembedding")
    used = page.locator(".panel").filter(has=page.get_by_role("heading", name="Usage"))
    (known,) = service.create_rest_client().get_usage("total", run=trained.run_id).result().rows
    expect(used).to_contain_text(f"Trained tokens{known.tokens_trained}")
    expect(used).to_contain_text(re.compile(r"Kept[1-9][\d.]* kB"))


def test_a_checkpoint_meets_its_own_base_model_by_the_name_of_its_run(
    signed_in: Page, trained: Trained
) -> None:
    page = signed_in
    go(page, "checkpoints")
    row = page.get_by_role("row").filter(has_text="sampler").filter(has_text=HOSTILE)
    expect(row).to_have_count(1)
    page.get_by_label("Filter checkpoints").fill("onerror")
    expect(row).to_be_visible()
    choose(page, "sampler", "Open in the playground")
    expect(page.get_by_role("combobox", name="Model A")).to_have_value(MODEL)
    second = page.get_by_role("combobox", name="Model B")
    expect(second).to_have_value(trained.sampler)
    expect(second.locator("option:checked")).to_have_text(f"sampler · {HOSTILE}")
    assert page.locator("img[src=x]").count() == 0


def test_a_merged_model_is_downloaded(signed_in: Page, trained: Trained) -> None:
    page = signed_in
    go(page, run_view(trained))
    choose(page, "sampler", "Merge or export …")
    with page.expect_download() as download:
        page.get_by_role("button", name=re.compile(r"Download the merged model \(\d+ kB\)")).click()
    assert download.value.suggested_filename == "sampler-merged.tar"
    with tarfile.open(download.value.path()) as archive:
        assert {"sampler-merged/config.json", "sampler-merged/model.safetensors"} <= set(
            archive.getnames()
        )


def test_a_prompt_is_scored_and_a_text_completed(signed_in: Page) -> None:
    page = signed_in
    go(page, "playground")
    for mode, text in (("Score a prompt", "one two"), ("Completion", "one two three")):
        page.get_by_text(mode, exact=True).click()
        page.get_by_role("textbox", name="Prompt").fill(text)
        page.keyboard.press("Control+Enter")
        expect(page.get_by_text(re.compile("perplexity"))).to_be_visible()
        assert page.locator(".log .token[aria-label*='%']").count() >= 1


def test_what_is_sent_before_the_models_are_listed_waits_for_them(signed_in: Page) -> None:
    page, held = signed_in, list[Route]()
    page.route("**/get_server_capabilities", lambda each: held.append(each))
    go(page, "playground")
    page.get_by_text("Completion", exact=True).click()
    page.get_by_role("textbox", name="Prompt").fill("one two")
    with page.expect_request("**/completions") as sent:
        page.keyboard.press("Control+Enter")
        expect(page.get_by_role("button", name="Complete", exact=True)).to_be_disabled()
        for each in held:
            each.continue_()
    assert sent.value.post_data_json["model"] == MODEL
    expect(page.get_by_text(re.compile("perplexity"))).to_be_visible()


def test_a_checkpoint_is_published_expires_and_is_deleted(
    signed_in: Page, trained: Trained, service: tinkex.ServiceClient
) -> None:
    page, rest = signed_in, service.create_rest_client()

    def kept() -> dict[str, bool]:
        listed = rest.list_checkpoints(trained.run_id).result().checkpoints
        return {each.checkpoint_id: each.public for each in listed}

    go(page, "checkpoints")
    row = page.get_by_role("row").filter(has_text="halfway")
    choose(page, "halfway", "Publish …")
    page.get_by_role("button", name="Publish").click()
    expect(row).to_contain_text("Public")
    assert kept()["weights/halfway"]
    choose(page, "halfway", "Unpublish")
    expect(row).to_contain_text("Private")
    choose(page, "halfway", "Set when it expires …")
    page.get_by_label(re.compile("Days from now")).fill("2")
    page.get_by_role("button", name="Set").click()
    expect(row).to_contain_text(re.compile("in (2 d|1 d 23 h)"))
    with page.expect_download() as download:
        choose(page, "halfway", "Download")
    assert download.value.suggested_filename == "halfway.tar"
    choose(page, "halfway", "Delete …")
    button = page.get_by_role("button", name="Delete for good")
    expect(button).to_be_disabled()
    page.get_by_label(re.compile("To confirm")).fill("halfway")
    button.click()
    expect(row).to_have_count(0)
    assert "weights/halfway" not in kept()


def test_a_key_is_made_and_revoked_and_its_page_signs_out(
    signed_in: Page, page: Page, server: EmbeddedServer
) -> None:
    go(page, "server")
    expect(page.get_by_text("Ready", exact=True)).to_be_visible()
    page.get_by_role("button", name="New key").click()
    page.get_by_label("Name", exact=True).fill("second")
    page.get_by_role("button", name="Make it").click()
    made = page.get_by_role("dialog").locator("code").inner_text()
    page.get_by_role("button", name="Close").click()
    other = page.context.browser.new_context()  # type: ignore[union-attr]
    theirs = other.new_page()
    theirs.goto(server.base_url)
    theirs.get_by_label("API key").fill(made)
    theirs.keyboard.press("Enter")
    expect(theirs.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
    page.get_by_role("button", name="Revoke second").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(page.get_by_text("second is revoked")).to_be_visible()
    theirs.get_by_role("link", name="Checkpoints").click()
    expect(theirs.get_by_role("alert")).to_contain_text("revoked")
    other.close()


@pytest.mark.parametrize("size", SIZES)
def test_every_view_fits_its_window(signed_in: Page, trained: Trained, size: str) -> None:
    page = signed_in
    width, height = SIZES[size]
    page.set_viewport_size({"width": width, "height": height})
    for view in ("runs", run_view(trained), "checkpoints", "playground?b=x", "server"):
        go(page, view)
        page.get_by_role("heading", level=1).wait_for()
        overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(overflow) <= 0, (size, view)
        unnamed = page.evaluate(
            """() => [...document.querySelectorAll("button, a, input, select, textarea")]
                .filter((each) => each.checkVisibility() && !each.textContent.trim()
                    && !each.labels?.length && !each.ariaLabel && !each.alt)
                .map((each) => each.outerHTML)"""
        )
        assert unnamed == [], view


CONTROLS = """() => [...document.querySelectorAll(
        "a[href], button, input, select, textarea, summary, [tabindex]")]
    .filter((each) => each.checkVisibility() && !each.disabled && each.tabIndex >= 0)
    .filter((each) => each.type !== "radio" || each.checked)"""
"""What Tab has to reach: of a group of radio buttons the chosen one, from which arrows lead on."""
MISSED = f"({CONTROLS})().filter((each) => !window.reached.has(each)).map((each) => each.outerHTML)"
NOTE_FOCUS = """() => {
    const now = document.activeElement, { outlineStyle, boxShadow } = getComputedStyle(now);
    window.reached.add(now);
    const isMarked = outlineStyle !== "none" || boxShadow !== "none";
    return isMarked || now === document.body ? "" : now.outerHTML;
}"""


def test_every_control_is_reached_by_tab_and_shows_that_it_has_the_focus(
    signed_in: Page, trained: Trained
) -> None:
    page = signed_in
    for view in ("runs", run_view(trained), "checkpoints", "playground?b=x", "server"):
        go(page, view)
        page.get_by_role("heading", level=1).wait_for()
        page.evaluate("() => { document.activeElement?.blur(); window.reached = new Set(); }")
        unmarked = set()
        for _ in range(300):  # lists may arrive, or change, while it goes round
            page.keyboard.press("Tab")
            unmarked.add(page.evaluate(NOTE_FOCUS))
            if not page.evaluate(MISSED):
                break
        assert page.evaluate(MISSED) == [], view
        assert unmarked <= {""}, view
