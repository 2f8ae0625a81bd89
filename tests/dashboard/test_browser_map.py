"""The residency map in a real browser: what is painted, pointed at and dragged over."""

from __future__ import annotations

import itertools
import re

import httpx
import numpy as np
import pytest
from playwright.sync_api import Page, expect

from dashboard.palette import CLASSES, LIGHT
from dashboard.session_page import BINS
from tests.dashboard.browser import drawn, nothing_is_wrong
from tests.dashboard.conftest import LAST, Story

pytestmark = [pytest.mark.xdist_group("dashboard"), pytest.mark.timeout(240)]


def dragged(page: Page, start: float, end: float) -> None:
    """Drag from a share of the map's width to another."""
    box = page.locator(".pace-map canvas").bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    places = [box["x"] + share * box["width"] for share in (start, end)]
    page.mouse.move(places[0], y)
    page.mouse.down()
    page.mouse.move(sum(places) / 2, y, steps=4)
    page.mouse.move(places[1], y, steps=4)


def zoomed(page: Page, old: str) -> tuple[int, int]:
    """The range of the address, once it is another than ``old`` and the map shows it."""
    page.wait_for_url(lambda url: "range=" in url and url != old)
    found = re.search(r"range=(\d+)-(\d+)", page.url)
    assert found is not None
    start, end = int(found[1]), int(found[2])
    label = re.compile(f"tokens {start:,} to {end:,} after step")
    expect(page.locator(".pace-map canvas")).to_have_attribute("aria-label", label)
    return start, end


def test_a_drag_zooms_to_what_lies_there(page: Page, dashboard: str, story: Story) -> None:
    view = 0, story.get("/sessions/rule-pace/residency", bins=1, step=LAST)["at"]
    page.goto(f"{dashboard}/session?session=rule-pace")
    drawn(page, LAST)
    for share in ((0.6, 0.1), (0.5, 1.2), (0.25, 0.75)):
        old, size = page.url, view[1] - view[0]
        expected = sorted(view[0] + min(place, 1) * size for place in share)
        dragged(page, *share)
        page.mouse.up()
        view = zoomed(page, old)
        # a pixel is size / 1,140 tokens; the range holds whole tokens
        assert view == pytest.approx(tuple(expected), abs=1 + 3 * size / 1140), share
    expect(page.get_by_role("button", name="Show all")).to_be_visible()
    page.get_by_role("button", name="Show all").click()
    page.wait_for_url(lambda url: "range=" not in url)
    nothing_is_wrong(page)


def test_a_click_or_a_drag_from_beside_the_map_zooms_not(page: Page, dashboard: str) -> None:
    page.goto(f"{dashboard}/session?session=rule-pace")
    drawn(page, LAST)
    for share in ((0.5, 0.501), (-0.02, 0.5)):
        dragged(page, *share)
        page.mouse.up()
    page.goto(f"{dashboard}/compare?a=rule-pace&b=rule-h2o")  # there nothing is zoomed
    expect(page.locator(".pace-map canvas")).to_have_count(2)
    box = page.locator(".pace-map canvas").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 50, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 50, steps=4)
    page.mouse.up()
    page.wait_for_timeout(500)
    assert "range" not in page.url
    nothing_is_wrong(page)


def test_a_message_is_zoomed_to_by_keyboard(page: Page, dashboard: str, story: Story) -> None:
    page.goto(f"{dashboard}/session?session=rule-pace&message=1")
    drawn(page, LAST)
    page.get_by_role("button", name="Zoom to message 1").press("Enter")
    spans = story.get("/sessions/rule-pace")["spans"]
    assert zoomed(page, "") == (spans[1]["start"], spans[1]["end"])
    nothing_is_wrong(page)


def test_a_drag_outlives_a_new_turn(page: Page, dashboard: str, story: Story) -> None:
    story.begin("dragged", "pace")
    page.goto(f"{dashboard}/session?session=dragged")
    drawn(page, 1)
    dragged(page, 0.1, 0.4)
    story.say("dragged", "And now?")
    expect(page.locator(".pace-live")).to_contain_text("step 2 of 2")
    page.mouse.up()
    page.wait_for_url(re.compile(r"range=\d+-\d+"))
    drawn(page, 2)
    httpx.delete(f"{story.url}/v1/sessions/dragged").raise_for_status()


@pytest.mark.parametrize(("start", "tokens"), [(0, None), (37, 650), (5, 1)])
def test_the_map_shows_what_the_api_tells(
    page: Page, dashboard: str, story: Story, start: int, tokens: int | None
) -> None:
    """Every column of pixels shows the bin at its middle: nothing where no token is, else the shade
    of its class; and the pointer reads that bin."""
    at = story.get("/sessions/rule-h2o/residency", bins=1, step=LAST)["at"]
    end = at if tokens is None else start + tokens
    assert end <= at
    page.goto(f"{dashboard}/session?session=rule-h2o&range={start}-{end}")
    drawn(page, LAST)
    told = story.get(
        "/sessions/rule-h2o/residency",
        bins=min(BINS, end - start),
        step=LAST,
        start=start,
        end=end,
    )["bins"]
    counts, classes, edges = (np.array(told[name]) for name in ("counts", "class", "edges"))
    canvas = page.locator(".pace-map canvas")
    colours = canvas.evaluate(
        """(canvas, layers) => {
            const pen = canvas.getContext("2d");
            return Array.from({ length: layers }, (_, layer) => {
                const y = Math.floor((canvas.height * (layer + 0.5)) / layers);
                const { data } = pen.getImageData(0, y, canvas.width, 1);
                return Array.from({ length: canvas.width }, (_, x) => {
                    const hex = [0, 1, 2].map((i) => data[4 * x + i].toString(16).padStart(2, "0"));
                    return data[4 * x + 3] ? "#" + hex.join("") : "";
                });
            });
        }""",
        len(counts),
    )
    painted = np.array(colours)
    columns = painted.shape[1]
    assert columns >= len(edges) - 1, "else some columns show several bins"
    middles = start + (np.arange(columns) + 0.5) * (end - start) / columns
    bins = np.searchsorted(edges, middles, side="right") - 1
    counts, classes, width = counts[:, bins], classes[:, bins], np.diff(edges)[bins]
    assert ((painted != "") == (counts > 0)).all()
    full = counts == width
    assert (painted[full] == np.array(LIGHT.classes)[classes[full]]).all() and full.any()

    box = canvas.bounding_box()
    assert box is not None
    for column in (0, columns // 3, columns - 1):
        page.mouse.move(box["x"] + (column + 0.5) * box["width"] / columns, box["y"] + 3)
        low, high = (f"{edges[bins[column] + side] - side:,}" for side in (0, 1))
        place = low if low == high else f"{low}–{high}"
        text = f"layer 0, {place}: {counts[0, column]} of {width[column]} tokens resident"
        expect(page.locator(".pace-map-tip")).to_contain_text(text)
        if counts[0, column]:
            kind = CLASSES[classes[0, column]]
            expect(page.locator(".pace-map-tip")).to_contain_text(f"mostly {kind}")
        tip = page.locator(".pace-map-tip").bounding_box()
        assert tip is not None and tip["x"] + tip["width"] <= 1280
    page.mouse.move(box["x"] + 3, box["y"] - 200)
    expect(page.locator(".pace-map-tip")).to_be_hidden()


def test_the_map_fits_a_window_that_changes(page: Page, dashboard: str) -> None:
    page.goto(f"{dashboard}/session?session=rule-h2o")
    drawn(page, LAST)
    page.set_viewport_size({"width": 640, "height": 800})
    expect(page.locator(".pace-map canvas")).not_to_have_js_property("width", 0)
    page.wait_for_function(
        """() => {
            const map = document.querySelector(".pace-map");
            const canvas = map.querySelector("canvas").getBoundingClientRect();
            return canvas.width > 200 && canvas.right <= map.getBoundingClientRect().right;
        }"""
    )
    # no two labels of an axis touch
    boxes = page.locator(".pace-map svg text:not([transform])").evaluate_all(
        "all => all.map(e => e.getBoundingClientRect()).map(b => [b.top, b.left, b.right])"
    )
    for top in {box[0] for box in boxes}:
        line = sorted(box[1:] for box in boxes if box[0] == top)
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(line)), line
    page.set_viewport_size({"width": 1280, "height": 800})
    nothing_is_wrong(page)
