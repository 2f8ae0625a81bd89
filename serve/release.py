"""Which release this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def release() -> str:
    """Version of the installed package; ``source`` when it runs without being installed."""
    try:
        return version("pace-engine")
    except PackageNotFoundError:
        return "source"
