"""Gives memory back to the system after large requests.

The C library keeps what is freed for later use, in one heap per thread; after a request of 12 MB
that is 60 to 100 MB in each process it passed through, for as long as the process lives.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

ALLOCATOR_ENV = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "1048576"}
"""For Ray's processes: large texts lie in pages of their own, which go when freed, all else
in one heap, the only kind whose end can be given back."""

LARGE_BYTES = 1 << 20
"""What a request must have in bytes for its memory to be given back at once."""
_DELAY_S = 0.5


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    """glibc's, which other C libraries do not have."""
    trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim


def return_memory() -> None:
    """Return free pages of all heaps to the system. Takes milliseconds, without the interpreter
    lock; does nothing where the C library cannot."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


class MemoryReturn:
    """Calls ``return_memory`` in a thread once the last of several large requests is over.

    Belongs to the event loop's thread.
    """

    def __init__(self, delay_s: float | None = None) -> None:
        self._delay_s = _DELAY_S if delay_s is None else delay_s
        self._timer: asyncio.TimerHandle | None = None
        self.largest = 0
        """Bytes of the largest request so far: what is held because of it may go much later."""

    def after(self, size: int) -> None:
        """A request of ``size`` bytes is over, and nothing of it is needed any more."""
        self.largest = max(self.largest, size)
        if size < LARGE_BYTES:
            return
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._delay_s, self._start, loop)

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        loop.run_in_executor(None, return_memory)


class MemoryMiddleware:
    """ASGI middleware: gives memory back after requests with large bodies."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._memory = MemoryReturn()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or another kind of connection."""
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            self._memory.after(size)
