"""Stands before Ray Serve's HTTP proxy, in the proxy's process.

The proxy reads a few headers itself, before any of our own code: a byte that is no UTF-8 in one
of them would be a 500, and its own routes would answer without a key. Ray is told about
``middlewares`` by an environment variable (``serve.cluster.ray_environment``).
"""

from __future__ import annotations

from collections.abc import Iterable

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.errors import PaceError
from serve.memory import MemoryMiddleware
from serve.responses import error_response
from serve.wire.errors import HeadersTooLarge, RouteNotFound

MAX_HEADER_BYTES = 64 * 1024
_RAY_ROUTES = "/-/"
_READ_BY_RAY = frozenset({b"x-request-id", b"x-session-id", b"traceparent"})
_CHOOSES_A_MODEL = b"serve_multiplexed_model_id"

Headers = list[tuple[bytes, bytes]]


def middlewares() -> list[Middleware]:
    """What Ray asks for."""
    return [Middleware(MemoryMiddleware), Middleware(ProxyGuard)]


class ProxyGuard:
    """ASGI middleware: refuses what the proxy must not see, and hands it readable headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; other kinds of connection pass."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = _refusal(scope["path"], scope["headers"])
        if refusal is not None:
            await error_response(refusal)(scope, receive, send)
            return
        await self._app({**scope, "headers": _readable(scope["headers"])}, receive, send)


def _refusal(path: str, headers: Iterable[tuple[bytes, bytes]]) -> PaceError | None:
    if path.startswith(_RAY_ROUTES):
        return RouteNotFound(f"There is no {path} here.")
    size = sum(len(name) + len(value) for name, value in headers)
    if size > MAX_HEADER_BYTES:
        return HeadersTooLarge(f"The headers are larger than {MAX_HEADER_BYTES} bytes.")
    return None


def _readable(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers with '?' for each byte beyond ASCII where Ray reads, and none that would make it
    choose among models."""
    return [
        (name, value.decode("ascii", "replace").replace("\ufffd", "?").encode())
        if name.lower() in _READ_BY_RAY
        else (name, value)
        for name, value in headers
        if name.lower().replace(b"-", b"_") != _CHOOSES_A_MODEL
    ]
