"""A start-up error's way from a replica's constructor to the person who ran ``pace serve``.

Serve reports a constructor's exception as text inside a longer text. The reason is put
between two marks there, and found again.
"""

from __future__ import annotations

import re

from engine.errors import PaceError

_OPEN, _CLOSE = "[[pace: ", " :pace]]"
_MARKED = re.compile(re.escape(_OPEN) + r"(.*?)" + re.escape(_CLOSE), re.DOTALL)
_LAST_ERROR = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception)\b.*$", re.MULTILINE)


class StartError(RuntimeError):
    """Why a replica could not start, marked for ``find_start_error``."""


def mark_start_error(error: Exception) -> StartError:
    """An exception whose text holds ``error``'s message between the marks."""
    known = isinstance(error, PaceError)
    return StartError(f"{_OPEN}{error if known else f'{type(error).__name__}: {error}'}{_CLOSE}")


def find_start_error(text: str) -> str:
    """The reason inside Serve's report; without marks the last line that names an error."""
    marked = _MARKED.search(text)
    if marked:
        return marked.group(1)
    errors = _LAST_ERROR.findall(text)
    lines = [line for line in text.splitlines() if line.strip()]
    return str((errors or lines or ["no reason was given"])[-1]).strip()
