"""Ctrl-C and SIGTERM: the first stops in order, the second at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequested(BaseException):
    """Raised in the main thread by the first signal; ``signum`` says which.

    Not an ``Exception``: nothing on the way may swallow it.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


class StopSignals:
    """Handles both signals while the context is entered.

    Args:
        kill: ends all own processes at once; called by the second signal, before the process
            exits with 128 + the signal's number.
    """

    def __init__(self, kill: Callable[[], None]) -> None:
        self._kill = kill
        self._stopping = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        self._previous = {number: signal.getsignal(number) for number in _SIGNALS}
        self.install()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def install(self) -> None:
        """Take the signals (again: Ray replaces the handler of SIGTERM when it starts)."""
        for number in _SIGNALS:
            signal.signal(number, self._handle)

    def stopping(self) -> None:
        """From now on a signal is a second one, whether or not there was a first."""
        self._stopping = True

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if not self._stopping:
            self._stopping = True
            raise StopRequested(signum)
        self._kill()
        # Interpreter exit would wait for Ray's threads and their dead peers.
        os._exit(128 + signum)
