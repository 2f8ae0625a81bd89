"""How fast the dashboard is: ``python -m tests.benchmarks.dashboard_speed``.

A session of 200,000 tokens of a 36-layer model is made and served behind the real routes,
``pace dashboard`` shows it, and Chromium opens it and moves its slider.

Prints JSON, seconds, medians of ``--times`` (20) with the slowest beside them:
    first_visit_s: the first opening, nothing in the browser's cache
    open_s: from the address to the drawn residency map and list of messages, at steps not seen yet
    slider_s: from a key pressed on the slider to the map of that step, not seen yet
    again_s: the same for steps seen before
    load: the machine's load average, before and after
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import httpx
from playwright.sync_api import BrowserContext, Page

from tests.support.chromium import find_chromium, launched
from tests.support.large_session import SESSION
from tests.support.server import free_port

SETTLE_S = 1.0
_PACE = "import sys; from serve.cli import main; sys.exit(main(sys.argv[1:]))"
_GRID = "[data-testid=stDataFrame] canvas"


@contextmanager
def running(command: Sequence[str], until: str, seconds: float) -> Iterator[str]:
    """A child process; gives the first line of its output that holds ``until``."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            end = time.monotonic() + seconds
            for line in process.stdout:
                if until in line:
                    yield line
                    break
                assert time.monotonic() < end, f"{command} said nothing of {until!r}"
        finally:
            process.send_signal(signal.SIGINT)  # so that it clears up


def wait_drawn(page: Page, step: int) -> None:
    """Until the map of ``step`` and the list are drawn, seen at the next frame."""
    page.wait_for_function(
        """([text, grid]) => [...document.querySelectorAll('.pace-map-title')].some(
            title => title.textContent.endsWith(text)) && document.querySelector(grid)""",
        arg=[f"after step {step}", _GRID],
        polling="raf",
        timeout=120_000,
    )


def opening(context: BrowserContext, address: str, step: int) -> float:
    """Seconds to open the session at ``step`` in a new tab."""
    page = context.new_page()
    start = time.perf_counter()
    page.goto(f"{address}/session?session={SESSION}&step={step}", wait_until="commit")
    wait_drawn(page, step)
    taken = time.perf_counter() - start
    page.close()
    time.sleep(SETTLE_S)
    return taken


def moving(page: Page, key: str, step: int) -> float:
    """Seconds from the key to the map of ``step``."""
    slider = page.get_by_role("slider").first
    start = time.perf_counter()
    slider.press(key)
    wait_drawn(page, step)
    taken = time.perf_counter() - start
    time.sleep(SETTLE_S)
    return taken


def measure(context: BrowserContext, address: str, steps: int, times: int) -> dict[str, object]:
    """All figures; see the module's text."""
    first_visit = opening(context, address, steps)
    opened = [opening(context, address, 5 + at) for at in range(times)]
    page = context.new_page()
    page.goto(f"{address}/session?session={SESSION}&step={steps}")
    wait_drawn(page, steps)
    time.sleep(2 * SETTLE_S)
    moved = [moving(page, "ArrowLeft", steps - 1 - at) for at in range(times)]
    back = [moving(page, "ArrowRight", steps - times + 1 + at) for at in range(times)]
    return {
        "first_visit_s": round(first_visit, 2),
        **{
            name: {"median": round(statistics.median(all_of), 3), "slowest": round(max(all_of), 3)}
            for name, all_of in (("open_s", opened), ("slider_s", moved), ("again_s", back))
        },
    }


def machine() -> dict[str, object]:
    """What it ran on."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = {line.split(":")[1].strip() for line in file if line.startswith("model name")}
    return {"cpu": sorted(names), "cores": os.cpu_count(), "system": platform.platform()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="How fast the dashboard is.")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--url", help="a server that holds the session; without it one is made")
    given = parser.parse_args()
    chromium = find_chromium()
    if chromium is None:
        sys.exit("no Chromium on this machine; on Debian and Ubuntu: apt-get install chromium")
    python, port = sys.executable, free_port()
    large = [python, "-u", "-m", "tests.support.large_session", "--steps", str(given.steps)]
    if given.url:
        large = [python, "-c", f"print({given.url!r}, flush=True); import time; time.sleep(1e6)"]
    with running(large, "http://", 1200) as line:
        url = next(word for word in line.split() if word.startswith("http://"))
        viewer = [python, "-u", "-c", _PACE, "dashboard", "--url", url, "--port", str(port)]
        with running(viewer, "http://", 60), launched(chromium) as browser:
            address = f"http://127.0.0.1:{port}"
            while not _answers(address):
                time.sleep(0.2)
            before = os.getloadavg()[0]
            context = browser.new_context(viewport={"width": 1280, "height": 800})
            found = measure(context, address, given.steps, given.times)
            tokens = httpx.get(f"{url}/v1/sessions/{SESSION}").json()["tokens"]
    load = [round(before, 2), round(os.getloadavg()[0], 2)]
    print(json.dumps({"tokens": tokens, **found, "load": load, **machine()}, indent=2))


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/_stcore/health", timeout=5).is_success
    except httpx.HTTPError:
        return False


if __name__ == "__main__":
    main()
