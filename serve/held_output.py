"""Standard output and error of the libraries below, held back until it is known what to do."""

from __future__ import annotations

import io
import threading
from typing import Literal, TextIO


class HeldOutput(io.TextIOBase):
    """A text stream that stands for ``sys.stdout`` or ``sys.stderr``; holds at first.

    Ray prints what its workers say wherever those point. While a server starts that is held:
    a failure is told in one line, not in tracebacks of three processes.

    Args:
        target: where the text goes when it is let through.
    """

    def __init__(self, target: TextIO) -> None:
        self._target = target
        self._held: list[str] = []
        self._state: Literal["hold", "pass", "drop"] = "hold"
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        """Hold, pass on or drop ``text``."""
        with self._lock:
            if self._state == "hold":
                self._held.append(text)
            elif self._state == "pass":
                self._target.write(text)
                self._target.flush()
        return len(text)

    def let_through(self) -> None:
        """Write what was held, and from now on everything."""
        with self._lock:
            self._target.write("".join(self._held))
            self._target.flush()
            self._held.clear()
            self._state = "pass"

    def drop(self) -> None:
        """Forget what was held, and from now on everything."""
        with self._lock:
            self._held.clear()
            self._state = "drop"

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        """The target's, for what must be written without Python (fault handlers)."""
        return self._target.fileno()

    def isatty(self) -> bool:
        return False
