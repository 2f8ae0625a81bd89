"""A session's bounded record of what happened to its cache (DESIGN §3.9)."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from itertools import dropwhile
from typing import Any, get_args

from engine import paging
from engine.types import EventKind, LedgerEvent

KINDS: tuple[EventKind, ...] = get_args(EventKind)
"""What an event tells of."""
Note = tuple[EventKind, int, Mapping[str, Any]]
"""Kind, step and data of an event."""


class Notes:
    """The newest ``limit`` events of a running turn; ``dropped`` counts the others."""

    def __init__(self, limit: int = 2048) -> None:
        self.dropped = 0
        self._notes: deque[Note] = deque(maxlen=limit)

    def __iter__(self) -> Iterator[Note]:
        return iter(self._notes)

    def __len__(self) -> int:
        return len(self._notes)

    def add(self, kind: EventKind, step: int, data: Mapping[str, Any]) -> None:
        """Note one event."""
        self.dropped += len(self._notes) == self._notes.maxlen
        self._notes.append((kind, step, data))


class Ledger:
    """The newest ``limit`` events of a session. ``seq`` keeps counting over dropped ones."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._events: deque[LedgerEvent] = deque(maxlen=limit)
        self._next = 1

    def add(self, kind: EventKind, step: int, data: Mapping[str, Any]) -> None:
        """Record one event."""
        self._events.append(LedgerEvent(self._next, kind, step, data))
        self._next += 1

    def extend(self, notes: Notes) -> None:
        """Record the events of a committed turn."""
        self._next += notes.dropped
        for kind, step, data in notes:
            self.add(kind, step, data)

    def since(self, seq: int, kinds: Collection[str] = KINDS) -> list[LedgerEvent]:
        """Events of ``kinds`` after ``seq``, oldest first."""
        later = dropwhile(lambda event: event.seq <= seq, self._events)
        return [event for event in later if event.kind in kinds]


def page(events: Iterable[LedgerEvent], limit: int | None = None) -> list[LedgerEvent]:
    """The first ``limit`` of ``events`` (None: any number) that fit one answer of 1 MB; always
    one, if there is one."""
    names = [field.name for field in fields(LedgerEvent)]
    return paging.page(events, limit, lambda event: {name: getattr(event, name) for name in names})
