"""The whole dashboard in a real browser: `pace dashboard` against a real server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
from playwright.sync_api import Page, Route, expect

from dashboard.palette import LIGHT
from dashboard.session_page import BINS
from tests.dashboard.conftest import LAST, RULE, Story
from tests.support.chromium import chromium_or_skip, launched
from tests.support.server import free_port

pytestmark = [pytest.mark.xdist_group("dashboard"), pytest.mark.timeout(240)]
SLOW_MS = 30_000
_PACE = "import sys; from serve.cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture(scope="module")
def dashboard(story: Story) -> Iterator[str]:
    """Its address. In the end Ctrl-C stops it, and nothing of it is left."""
    port = free_port()
    command = [sys.executable, "-c", _PACE, "dashboard", "--url", story.url, "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as process:
        try:
            assert process.stdout is not None
            assert url in process.stdout.readline()
            end = time.monotonic() + 60
            while not _answers(url):
                assert process.poll() is None and time.monotonic() < end, "it did not start"
                time.sleep(0.1)
            yield url
        finally:
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(20) == 0
    assert not _answers(url)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/_stcore/health", timeout=5).is_success
    except httpx.HTTPError:
        return False


@pytest.fixture(scope="module")
def page(dashboard: str) -> Iterator[Page]:
    """A browser's page that reaches nothing beyond this machine, and may not try to."""
    asked: list[str] = []

    def guard(route: Route) -> None:
        asked.append(route.request.url)
        route.abort()

    with launched(chromium_or_skip()) as browser:
        opened = browser.new_page(viewport={"width": 1280, "height": 800})
        opened.set_default_timeout(SLOW_MS)
        opened.route(re.compile(r"^https?://(?!127\.0\.0\.1[:/])"), guard)
        yield opened
    assert not asked


def gauge(page: Page, name: str, at: int = 0) -> str:
    return page.locator(f"[data-gauge={name}]").nth(at).inner_text()


def drawn(page: Page, step: int) -> None:
    """Wait until the residency map of ``step`` is there."""
    title = page.locator(".xtitle").filter(has_text=f"after step {step}").first
    expect(title).to_be_visible(timeout=SLOW_MS)


def nothing_is_wrong(page: Page) -> None:
    """No exception box, no banner of a failed read."""
    assert page.locator("[data-testid=stException]").count() == 0
    assert page.locator(".pace-advice", has_text="This page").count() == 0


def test_every_page_shows_the_numbers_of_the_api(page: Page, dashboard: str, story: Story) -> None:
    page.goto(dashboard)
    expect(page.locator("[data-gauge=sessions]")).to_have_text("2")
    assert gauge(page, "all-tokens") == f"{sum(s['tokens'] for s in _sessions(story)):,}"
    nothing_is_wrong(page)

    turn = story.get("/sessions/rule-h2o/steps")["data"][-1]
    page.goto(f"{dashboard}/session?session=rule-h2o")
    drawn(page, LAST)
    assert gauge(page, "residency") == f"{turn['residency']:.1%}"
    assert gauge(page, "rotary_gap") == f"{turn['rotary_gap']:,}"
    assert gauge(page, "kv_bytes") == f"{turn['kv_bytes'] / 2**20:,.1f} MiB"
    assert page.locator(".pace-bad").first.inner_text().startswith("✗")
    nothing_is_wrong(page)

    page.goto(f"{dashboard}/compare?a=rule-pace&b=rule-h2o")
    expect(page.locator(".xtitle").filter(has_text="after step")).to_have_count(2)
    pace = story.get("/sessions/rule-pace/steps")["data"][-1]
    assert gauge(page, "rotary_gap", 0) == f"{pace['rotary_gap']:,}"
    assert gauge(page, "rotary_gap", 1) == f"{turn['rotary_gap']:,}"
    nothing_is_wrong(page)


def test_the_slider_moves_all_views(page: Page, dashboard: str, story: Story) -> None:
    page.goto(f"{dashboard}/session?session=rule-pace")
    drawn(page, LAST)
    page.get_by_role("slider").first.press("ArrowLeft")
    drawn(page, LAST - 1)
    turn = story.get("/sessions/rule-pace/steps")["data"][LAST - 2]
    expect(page.locator("[data-gauge=rotary_gap]")).to_have_text(f"{turn['rotary_gap']:,}")
    assert f"step={LAST - 1}" in page.url
    nothing_is_wrong(page)


def test_a_drag_zooms(page: Page, dashboard: str) -> None:
    page.goto(f"{dashboard}/session?session=rule-pace")
    drawn(page, LAST)
    box = page.locator(".pace-map svg").bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 80, y)
    page.mouse.down()
    page.mouse.move(box["x"] + 150, y, steps=4)
    page.mouse.move(box["x"] + 250, y, steps=4)
    page.mouse.up()
    page.wait_for_url(re.compile(r"range=\d+-\d+"))
    expect(page.get_by_role("button", name="Show all")).to_be_visible()
    nothing_is_wrong(page)


def test_a_drag_outlives_a_new_turn(page: Page, dashboard: str, story: Story) -> None:
    story.begin("dragged", "pace")
    page.goto(f"{dashboard}/session?session=dragged")
    drawn(page, 1)
    box = page.locator(".pace-map svg").bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 80, y)
    page.mouse.down()
    page.mouse.move(box["x"] + 250, y, steps=4)
    story.say("dragged", "And now?")
    expect(page.locator(".pace-live")).to_contain_text("step 2 of 2")
    page.mouse.up()
    page.wait_for_url(re.compile(r"range=\d+-\d+"))
    drawn(page, 2)
    httpx.delete(f"{story.url}/v1/sessions/dragged").raise_for_status()


def test_the_map_shows_what_the_api_tells(page: Page, dashboard: str, story: Story) -> None:
    """A cell is painted where tokens are, in its class's colour where all are; the pointer reads
    the number."""
    page.goto(f"{dashboard}/session?session=rule-h2o")
    drawn(page, LAST)
    at = story.get("/sessions/rule-h2o/residency", bins=1, step=LAST)["at"]
    told = story.get("/sessions/rule-h2o/residency", bins=min(BINS, at), step=LAST, end=at)["bins"]
    counts, classes = np.array(told["counts"]), np.array(told["class"])
    colours = page.locator(".pace-map canvas").evaluate(
        """(canvas, [layers, bins]) => {
            const pen = canvas.getContext("2d");
            return Array.from({ length: layers * bins }, (_, cell) => {
                const x = Math.floor((canvas.width * ((cell % bins) + 0.5)) / bins);
                const y = Math.floor((canvas.height * (Math.floor(cell / bins) + 0.5)) / layers);
                const [r, g, b, a] = pen.getImageData(x, y, 1, 1).data;
                const hex = [r, g, b].map((one) => one.toString(16).padStart(2, "0"));
                return a ? "#" + hex.join("") : "";
            });
        }""",
        list(counts.shape),
    )
    painted = np.array(colours).reshape(counts.shape)
    assert ((painted != "") == (counts > 0)).all() and 0 < (counts > 0).sum() < counts.size
    full = counts == np.diff(told["edges"])
    assert {0, 1} <= {*classes[full]}
    assert (painted[full] == np.array(LIGHT.classes)[classes[full]]).all()

    box = page.locator(".pace-map canvas").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 1, box["y"] + 3)
    expect(page.locator(".pace-map-tip")).to_contain_text(re.compile("^layer 0, 0.*mostly sink$"))
    page.mouse.move(box["x"] + 3, box["y"] - 200)
    expect(page.locator(".pace-map-tip")).to_be_hidden()


def test_token_text_is_text(page: Page, dashboard: str) -> None:
    page.goto(f"{dashboard}/session?session=rule-pace&message=1")
    drawn(page, LAST)
    for name in ("Plan", "Renumbers", "Turns", "Tokens"):
        page.get_by_role("tab", name=name).click()
        expect(page.get_by_role("tab", name=name)).to_have_attribute("aria-selected", "true")
    strip = page.locator(".pace-text")
    expect(strip).to_be_visible()
    # byte tokens: what ASCII says is there character by character, the escape as a sign
    said = re.sub(r"[^\x00-\x7f]", "", RULE).replace("\x1b", "␛")
    shown = re.sub(r"[^\x00-\x7f␛]", "", strip.evaluate("e => e.textContent"))
    assert said.split(" 0m")[0].rstrip() in shown
    assert strip.locator("b").count() == 0 and strip.locator(".katex").count() == 0
    nothing_is_wrong(page)


def test_it_follows_a_session_that_goes_on_and_one_that_goes(
    page: Page, dashboard: str, story: Story
) -> None:
    story.begin("live", "pace")
    page.goto(f"{dashboard}/session?session=live")
    expect(page.locator(".pace-live")).to_contain_text("step 1 of 1")
    story.say("live", "And now?")
    drawn(page, 2)
    httpx.delete(f"{story.url}/v1/sessions/live").raise_for_status()
    expect(page.locator(".pace-bad")).to_contain_text("There is no session 'live' here.")
    story.begin("live", "pace")
    expect(page.locator(".pace-live")).to_contain_text("step 1 of 1")
    httpx.delete(f"{story.url}/v1/sessions/live").raise_for_status()


def _sessions(story: Story) -> list[dict[str, int]]:
    found: list[dict[str, int]] = story.get("/sessions")["data"]
    return found
