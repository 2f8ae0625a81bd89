"""Logging of the server: one line per turn, never a token's text."""

from __future__ import annotations

import logging
import re
import sys
import traceback

LOGGER_NAME = "pace"
_FRAMES = 4
_UNSAFE = re.compile(r"[^\w.:/-]", re.ASCII)


def configure(level: str) -> logging.Logger:
    """Send the ``pace`` logger of this process to standard error. Idempotent."""
    logger = logging.getLogger(LOGGER_NAME)
    logger.setLevel(level)
    logger.propagate = False
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        logger.addHandler(handler)
    return logger


def describe(error: BaseException) -> str:
    """Class and place of an exception, without its message, which might quote a prompt."""
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    places = " < ".join(f"{frame.filename}:{frame.lineno}" for frame in reversed(frames))
    cause = error.__cause__
    return f"{type(error).__name__} at {places or '?'}" + (
        f"; caused by {describe(cause)}" if cause is not None else ""
    )


def printable(text: str, limit: int = 128) -> str:
    """A client's label made safe for one log line."""
    return _UNSAFE.sub("?", text[:limit])
