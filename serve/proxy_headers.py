"""Request headers that Serve's HTTP proxy reads itself, before any route of ours: made harmless.

The proxy decodes some as UTF-8 and answers a bare 500 when they are not. Others would set a
timeout of Serve's own, or let a turn go on for nobody after its client has left.
"""

from __future__ import annotations

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

MIDDLEWARES_PATH = f"{__name__}:middlewares"

_SERVE_CONTROLS = frozenset(
    {
        b"serve-multiplexed-model-id",
        b"x-request-disconnect-disabled",
        b"x-request-timeout-seconds",
    }
)


class HeaderGuard:
    """Drops Serve's control headers; values of the others become UTF-8."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if "headers" in scope:
            headers = [(name, _as_utf8(value)) for name, value in scope["headers"]]
            scope = {**scope, "headers": [item for item in headers if not _controls(item[0])]}
        await self._app(scope, receive, send)


def middlewares() -> list[Middleware]:
    """What Serve's proxy is told to put in front (``MIDDLEWARES_PATH`` names this function)."""
    return [Middleware(HeaderGuard)]


def _as_utf8(value: bytes) -> bytes:
    try:
        value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1").encode()
    return value


def _controls(name: bytes) -> bool:
    return name.lower().replace(b"_", b"-") in _SERVE_CONTROLS
