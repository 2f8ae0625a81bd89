"""One HTTP request over a plain socket, so that the connection can be cut at any byte."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

PREFILL = b": prefill "
DATA = b"data: "


class RawRequest:
    """A ``POST`` whose connection the test owns.

    Args:
        url: where to, with host and port.
        body: sent as JSON.
        headers: more headers.
    """

    def __init__(
        self, url: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None
        content = json.dumps(body).encode()
        lines = {
            "Host": f"{parts.hostname}:{parts.port}",
            "Content-Type": "application/json",
            "Content-Length": str(len(content)),
            **(headers or {}),
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._bytes = f"POST {parts.path} HTTP/1.1\r\n{head}\r\n".encode() + content
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout=60)
        self.received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._socket.close()

    def send(self, part: float = 1.0) -> None:
        """Send the first ``part`` (0–1) of the request."""
        self._socket.sendall(self._bytes[: round(len(self._bytes) * part)])

    def read_until(self, marker: bytes, count: int = 1) -> bool:
        """Receive until ``marker`` has come ``count`` times; False when the answer ended first.

        One event of a stream never crosses a boundary of HTTP's chunks.
        """
        while self.received.count(marker) < count:
            piece = self._socket.recv(65536)
            self.received += piece
            if not piece or self.received.endswith(b"0\r\n\r\n"):
                return self.received.count(marker) >= count
        return True

    def read_for(self, seconds: float) -> None:
        """Receive what comes within ``seconds``."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._socket.settimeout(left)
            try:
                piece = self._socket.recv(65536)
            except TimeoutError:
                return
            self.received += piece
            if not piece:
                return

    def cut(self, reset: bool) -> None:
        """Close the connection, with a reset (as a killed machine does) or in order."""
        if reset:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()
