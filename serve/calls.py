"""What travels between Ingress and Engine: results, errors as values, batches of events.

Errors cross as values because Ray wraps raised exceptions in its own classes and Serve logs
each with a traceback; a client's mistake deserves neither.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.errors import PaceError
from engine.types import TurnEvent


@dataclass(frozen=True, slots=True)
class Outcome:
    """A value, or the error instead of it."""

    value: Any = None
    error: PaceError | None = None

    def unwrap(self) -> Any:
        """The value. Raises the error when there is one."""
        if self.error is not None:
            raise self.error
        return self.value


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What never changes while a replica lives."""

    model_name: str
    max_session_tokens: int
    replica: str


@dataclass(frozen=True, slots=True)
class Admitted:
    """First item of a turn's stream: the turn is validated and holds its session and row."""

    session_id: str
    replica: str


Events = tuple[TurnEvent, ...]


class Inbox:
    """Events of one turn, waiting for its reader. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._events: list[TurnEvent] = []
        self._filled = asyncio.Event()

    def put(self, event: TurnEvent) -> None:
        """Append; wakes the reader."""
        self._events.append(event)
        self._filled.set()

    async def take(self) -> Events:
        """Everything that has arrived, at least one event."""
        await self._filled.wait()
        self._filled.clear()
        events, self._events = tuple(self._events), []
        return events


class EventBridge:
    """Carries events from the step thread into the event loop.

    A step of many sessions posts many events; the loop is woken once for all of them,
    because each wake-up costs a system call and a fight for the interpreter lock.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._pending: list[tuple[Inbox, TurnEvent]] = []

    def sender(self, inbox: Inbox) -> Callable[[TurnEvent], None]:
        """A callback for ``Engine.submit``: any thread, never blocks, never raises."""

        def post(event: TurnEvent) -> None:
            with self._lock:
                self._pending.append((inbox, event))
                wake = len(self._pending) == 1
            if wake:
                try:
                    self._loop.call_soon_threadsafe(self._deliver)
                except RuntimeError:
                    # The loop is closed: the process is going down, nobody reads any more.
                    return

        return post

    def _deliver(self) -> None:
        with self._lock:
            pending, self._pending = self._pending, []
        for inbox, event in pending:
            inbox.put(event)
