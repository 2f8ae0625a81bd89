"""A session's bounded record of what happened to its cache (DESIGN §3.9)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from engine.types import LedgerEvent


class Ledger:
    """The newest ``limit`` events of a session. ``seq`` keeps counting over dropped ones."""

    def __init__(self, limit: int) -> None:
        self._events: deque[LedgerEvent] = deque(maxlen=limit)
        self._next = 1

    def add(self, kind: str, step: int, data: Mapping[str, Any]) -> None:
        """Record one event."""
        self._events.append(LedgerEvent(self._next, kind, step, data))
        self._next += 1

    def extend(self, events: Iterable[tuple[str, int, Mapping[str, Any]]]) -> None:
        """Record the (kind, step, data) events of a committed turn."""
        for kind, step, data in events:
            self.add(kind, step, data)

    def since(self, seq: int) -> list[LedgerEvent]:
        """Events after ``seq``, oldest first."""
        return [event for event in self._events if event.seq > seq]
