"""The README's pictures of the dashboard: ``python -m tests.support.screenshots``.

Plays one demo transcript under ``pace`` and ``h2o`` on the embedded model (some minutes), opens the
dashboard on it in Chromium and writes ``docs/images``. ``--url`` takes a server that already has
the sessions.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from PIL import Image
from playwright.sync_api import Page

from engine.config import EngineConfig
from serve.demo.filler import token_counter
from serve.demo.own_dashboard import own_dashboard
from serve.demo.own_server import own_server
from serve.demo.play import play
from tests.support.chromium import find_chromium, launched

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
MOST_BYTES = 300_000
WIDTH = 1280
DRAWN_S = 3.0
POLICIES = ("pace", "h2o")
ASKED = 4
"""Steps before the last: the pictures show a question in the middle of the ten."""


@contextmanager
def demo_server(url: str | None, tokens: int) -> Iterator[str]:
    """The server at ``url``, or one of our own that holds a played demo."""
    if url is not None:
        yield url
        return
    with own_server() as own:
        count = token_counter(EngineConfig().model)
        asyncio.run(play(own, (1,), tokens, POLICIES, count=count, keep=True))
        yield own


def shoot(page: Page, address: str, name: str, height: int) -> None:
    """One picture of what is there when all is drawn, in 256 colours."""
    page.set_viewport_size({"width": WIDTH, "height": height})
    page.goto(address)
    page.wait_for_selector(".pace-map canvas", state="attached", timeout=120_000)
    page.locator("[data-testid=stSkeleton]").first.wait_for(state="detached")
    page.mouse.move(2, height - 2)
    page.wait_for_timeout(1000 * DRAWN_S)
    path = IMAGES / name
    path.parent.mkdir(exist_ok=True)
    page.screenshot(path=path)
    with Image.open(path) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    size = path.stat().st_size
    print(f"{path}: {size:,} bytes")
    assert size < MOST_BYTES, f"{path} has {size} bytes"


def newest(sessions: list[dict[str, Any]], policy: str) -> dict[str, Any]:
    """The session of ``policy`` used last."""
    return max((s for s in sessions if s["policy"] == policy), key=lambda s: s["last_used"])


def main() -> None:
    """Play, open, shoot."""
    parser = argparse.ArgumentParser(description="The README's pictures of the dashboard.")
    parser.add_argument("--url", help="a server that already has sessions of both policies")
    parser.add_argument("--tokens", type=int, default=12_000)
    given = parser.parse_args()
    chromium = find_chromium()
    if chromium is None:
        sys.exit("no Chromium on this machine; on Debian and Ubuntu: apt-get install chromium")
    with (
        demo_server(given.url, given.tokens) as url,
        own_dashboard(url, None) as viewer,
        launched(chromium) as browser,
    ):
        assert viewer.url is not None, viewer.problem
        found = httpx.get(f"{url}/v1/sessions").json()["data"]
        pace, h2o = (newest(found, policy) for policy in POLICIES)
        step = h2o["step"] - ASKED
        page = browser.new_page(device_scale_factor=1.5)
        page.set_default_timeout(120_000)
        _wait_for(f"{viewer.url}/_stcore/health")
        ids = pace["session_id"], h2o["session_id"]
        session = f"{viewer.url}/session?session={ids[1]}&step={step}"
        shoot(page, session, "dashboard-session.png", 900)
        compare = f"{viewer.url}/compare?a={ids[0]}&b={ids[1]}&step={step}"
        shoot(page, compare, "dashboard-compare.png", 990)


def _wait_for(url: str) -> None:
    for _ in range(300):
        try:
            if httpx.get(url, timeout=5).is_success:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    sys.exit(f"{url} does not answer")


if __name__ == "__main__":
    main()
