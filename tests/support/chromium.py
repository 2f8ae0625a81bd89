"""A headless Chromium that is on this machine, with a fresh profile; nothing is downloaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

REQUIRED = "PACE_REQUIRE_CHROMIUM"
"""Set where a missing Chromium is a failure, such as in CI."""
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium() -> str | None:
    """Path of the machine's Chromium or Chrome."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


def chromium_or_skip() -> str:
    """Its path. Without one the test is skipped, or fails where one is required."""
    path = find_chromium()
    if path is None:
        text = "no Chromium on this machine; on Debian and Ubuntu: apt-get install chromium"
        if os.environ.get(REQUIRED):
            pytest.fail(text, pytrace=False)
        pytest.skip(text)
    return path


@contextmanager
def launched(path: str) -> Iterator[Browser]:
    """A browser with a profile of its own that goes with it."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()
