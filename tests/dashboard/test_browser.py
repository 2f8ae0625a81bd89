"""The whole dashboard in a real browser: `pace dashboard` against a real server."""

from __future__ import annotations

import re

import httpx
import pytest
from playwright.sync_api import Page, WebSocketRoute, expect
from streamlit.proto.BackMsg_pb2 import BackMsg

from tests.dashboard.browser import drawn, nothing_is_wrong
from tests.dashboard.conftest import LAST, RULE, Story

pytestmark = [pytest.mark.xdist_group("dashboard"), pytest.mark.timeout(240)]


def gauge(page: Page, name: str, at: int = 0) -> str:
    return page.locator(f"[data-gauge={name}]").nth(at).inner_text()


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
    expect(page.locator(".pace-map-title").filter(has_text="after step")).to_have_count(2)
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


def test_a_choice_is_not_lost_to_one_made_right_after_it(page: Page, dashboard: str) -> None:
    """The second leaves before the browser has heard what the first made of its address."""
    overtaken: list[str] = []

    def carry(browser: WebSocketRoute) -> None:
        server = browser.connect_to_server()

        def to_server(message: str | bytes) -> None:
            assert isinstance(message, bytes)
            sent = BackMsg.FromString(message)
            run = sent.rerun_script
            if f"step={LAST - 1}" in run.query_string and not run.fragment_id and not overtaken:
                overtaken.append(run.query_string)
                run.query_string = "session=rule-pace"
            server.send(sent.SerializeToString())

        browser.on_message(to_server)

    assert page.context.browser is not None
    with page.context.browser.new_page() as other:  # what carries its messages stays with it
        other.route_web_socket("**/_stcore/stream", carry)
        other.goto(f"{dashboard}/session?session=rule-pace")
        drawn(other, LAST)
        other.get_by_role("slider").first.press("ArrowLeft")
        drawn(other, LAST - 1)
        other.get_by_text("share", exact=True).first.click()
        drawn(other, LAST)
        assert overtaken
        drawn(other, LAST - 1)
        expect(other.get_by_role("radio", name="share")).to_be_checked()
        assert f"step={LAST - 1}" in other.url
        nothing_is_wrong(other)


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
