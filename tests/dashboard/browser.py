"""What the tests in a browser look for."""

from __future__ import annotations

from playwright.sync_api import Page, expect

SLOW_MS = 30_000


def drawn(page: Page, step: int) -> None:
    """Wait until the residency map of ``step`` is there."""
    title = page.locator(".pace-map-title").filter(has_text=f"after step {step}").first
    expect(title).to_be_visible()


def nothing_is_wrong(page: Page) -> None:
    """No exception box, no banner of a failed read."""
    assert page.locator("[data-testid=stException]").count() == 0
    assert page.locator(".pace-advice", has_text="This page").count() == 0
