"""No answer exceeds 1 MB: the one place that cuts what readers are given into pages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")

PAGE_BYTES = 900_000
"""Most bytes of the rows of one page; what stands around them has the rest of 1 MB."""
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def json_bytes(value: Any) -> int:
    """Bytes of ``value`` as JSON on the wire: UTF-8, without spaces."""
    return len(_encode(value).encode("utf-8", "surrogatepass"))


def page(
    rows: Iterable[T],
    limit: int | None = None,
    as_json: Callable[[T], Any] = lambda row: row,
    room: int = PAGE_BYTES,
) -> list[T]:
    """The leading rows, at most ``limit`` (None: any number), that take at most ``room`` bytes;
    always one, if there is one.

    Rows are taken from the iterable only as long as they fit. Of columns, a row is the tuple of
    what stands at one index of each: it takes at least as many bytes as that does in the columns.

    Args:
        as_json: what of a row is sent.
    """
    found: list[T] = []
    size = 0
    for row in rows:
        size += json_bytes(as_json(row)) + 1
        if found and (size > room or len(found) == limit):
            break
        found.append(row)
    return found
