"""Error answers."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route

from engine.errors import InvalidRequest, PaceError
from serve.wire.errors import (
    MethodNotAllowed,
    RouteNotFound,
    error_envelope,
    error_headers,
    error_kind,
)


def error_response(error: PaceError) -> JSONResponse:
    """The envelope with its status and headers."""
    return JSONResponse(
        error_envelope(error), status_code=error_kind(error).status, headers=error_headers(error)
    )


async def http_error(request: Request, error: Exception) -> Response:
    """Answer for what the router itself refuses."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    path = request.url.path
    if status == 405:
        refusal = error_response(MethodNotAllowed(f"{request.method} is not allowed on {path}."))
        refusal.headers["Allow"] = ", ".join(sorted(_allowed(request)))
        return refusal
    if status == 404:
        return error_response(RouteNotFound(f"There is no {path} here."))
    return error_response(InvalidRequest(f"HTTP error {status}."))


def _allowed(request: Request) -> set[str]:
    """The methods of the request's path; each has a route of its own."""
    found = (route for route in request.app.routes if isinstance(route, Route))
    matching = (route for route in found if route.matches(request.scope)[0] != Match.NONE)
    return {method for route in matching for method in route.methods or ()}
