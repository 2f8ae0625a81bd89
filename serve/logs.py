"""Logging of the server: one line per turn, never a token's text."""

from __future__ import annotations

import logging
import re
import sys
import traceback
from typing import Any

LOGGER_NAME = "pace"
# The engine's modules log under their own names.
_ENGINE_LOGGER = "engine"
_FRAMES = 4
_UNSAFE = re.compile(r"[^\w.:/-]", re.ASCII)


class _Places(logging.Formatter):
    """Shows where an exception came from, not what it said."""

    def formatException(self, ei: Any) -> str:
        return describe(ei[1]) if ei[1] is not None else ""


def configure(level: str) -> logging.Logger:
    """Send this process's ``pace`` and ``engine`` loggers to standard error. Idempotent.

    Returns:
        The ``pace`` logger.
    """
    for name in (LOGGER_NAME, _ENGINE_LOGGER):
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.propagate = False
        if not logger.handlers:
            handler = logging.StreamHandler(sys.stderr)
            handler.setFormatter(_Places("%(asctime)s %(levelname)s %(name)s %(message)s"))
            logger.addHandler(handler)
    return logging.getLogger(LOGGER_NAME)


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
