"""The gate in front of all routes: every request but ``/health`` needs a key, if there are keys."""

from __future__ import annotations

from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from serve.keys import NOBODY, ApiKeys, Caller
from serve.responses import error_response
from serve.wire.errors import PermissionDenied, WrongApiKey

_OPEN_PATHS = frozenset({"/health"})


class KeyGate:
    """ASGI middleware. Notes the caller for ``caller_of``; answers 401 itself.

    Args:
        app: what it guards.
        keys: None: the server has no keys and everybody may pass.
    """

    def __init__(self, app: ASGIApp, keys: ApiKeys | None) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; other kinds of connection pass (lifespan) or fail in the app."""
        if scope["type"] == "http":
            caller = self._identify(HTTPConnection(scope))
            if caller is None:
                await _refusal()(scope, receive, send)
                return
            scope.setdefault("state", {})["caller"] = caller
        await self._app(scope, receive, send)

    def _identify(self, connection: HTTPConnection) -> Caller | None:
        if self._keys is None:
            return NOBODY
        caller = self._keys.identify(connection.headers.get("authorization"))
        return NOBODY if caller is None and connection.url.path in _OPEN_PATHS else caller


def caller_of(request: Request) -> Caller:
    """Who sent the request."""
    caller = request.state.caller
    assert isinstance(caller, Caller)
    return caller


def asked_namespace(request: Request) -> str | None:
    """The namespace of ``?namespace=``, None when it is not given.

    Raises:
        PermissionDenied: it is another's, and the caller is no admin.
    """
    asked = request.query_params.get("namespace")
    caller = caller_of(request)
    if asked is not None and asked != caller.name and not caller.admin:
        raise PermissionDenied(
            "Only an admin's key may look into another namespace.", param="namespace"
        )
    return asked


def _refusal() -> JSONResponse:
    error = WrongApiKey(
        "No API key of this server was given. Send 'Authorization: Bearer <key>' with a key of the "
        "server's PACE_API_KEYS_FILE."
    )
    response = error_response(error)
    response.headers["WWW-Authenticate"] = "Bearer"
    return response
