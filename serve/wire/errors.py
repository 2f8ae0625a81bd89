"""Errors on the wire: one table from exception class to HTTP status and error type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.errors import (
    CapacityExceeded,
    ConfigError,
    Conflict,
    EngineFailure,
    InvalidRequest,
    ModelError,
    PaceError,
    SessionBusy,
    SessionNotFound,
    StepNotFound,
    TurnCancelled,
)


class ModelNotFound(InvalidRequest):
    """The request names a model this server does not serve."""

    code = "model_not_found"


class RouteNotFound(InvalidRequest):
    """No such path."""

    code = "not_found"


class MethodNotAllowed(InvalidRequest):
    """The path exists, but not with this method."""

    code = "method_not_allowed"


class BodyTooLarge(InvalidRequest):
    """The request body is larger than the configured limit."""

    code = "request_too_large"


class HeadersTooLarge(InvalidRequest):
    """The request's headers are larger than a proxy should hold."""

    code = "headers_too_large"


class WrongApiKey(InvalidRequest):
    """The request brings none of the server's API keys."""

    code = "invalid_api_key"


class PermissionDenied(InvalidRequest):
    """The key does not allow this."""

    code = "permission_denied"


class EngineUnavailable(EngineFailure):
    """No engine replica answers now; a retry may succeed."""

    code = "engine_unavailable"


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """HTTP status, OpenAI's ``type``, and whether repeating the same request can help."""

    status: int
    type: str
    retry: bool = False


_INVALID = "invalid_request_error"

# The most specific class listed here wins, by the exception's method resolution order.
ERROR_KINDS: dict[type[PaceError], ErrorKind] = {
    InvalidRequest: ErrorKind(400, _INVALID),
    WrongApiKey: ErrorKind(401, _INVALID),
    PermissionDenied: ErrorKind(403, _INVALID),
    ModelNotFound: ErrorKind(404, _INVALID),
    RouteNotFound: ErrorKind(404, _INVALID),
    SessionNotFound: ErrorKind(404, _INVALID),
    StepNotFound: ErrorKind(404, _INVALID),
    MethodNotAllowed: ErrorKind(405, _INVALID),
    BodyTooLarge: ErrorKind(413, _INVALID),
    HeadersTooLarge: ErrorKind(431, _INVALID),
    Conflict: ErrorKind(409, "conflict_error"),
    SessionBusy: ErrorKind(409, "conflict_error", retry=True),
    TurnCancelled: ErrorKind(409, "conflict_error"),
    CapacityExceeded: ErrorKind(429, "rate_limit_error", retry=True),
    EngineUnavailable: ErrorKind(503, "server_error", retry=True),
    EngineFailure: ErrorKind(500, "server_error", retry=True),
    ConfigError: ErrorKind(500, "server_error"),
    ModelError: ErrorKind(500, "server_error"),
    PaceError: ErrorKind(500, "server_error"),
}


def error_kind(error: PaceError) -> ErrorKind:
    """The table's entry for ``error``."""
    return next(ERROR_KINDS[cls] for cls in type(error).__mro__ if cls in ERROR_KINDS)


def error_envelope(error: PaceError) -> dict[str, Any]:
    """The body of every error: ``{"error": {"message", "type", "param", "code"}}``."""
    return {
        "error": {
            "message": error.message,
            "type": error_kind(error).type,
            "param": error.param,
            "code": error.code,
        }
    }


def error_headers(error: PaceError) -> dict[str, str]:
    """``Retry-After`` where a wait helps; ``x-should-retry`` keeps clients from repeating
    what cannot succeed (OpenAI's clients otherwise retry every 409 and 5xx)."""
    headers = {"x-should-retry": "true" if error_kind(error).retry else "false"}
    if isinstance(error, CapacityExceeded):
        headers["Retry-After"] = str(error.retry_after)
    return headers


def as_pace_error(error: BaseException) -> PaceError:
    """``error`` itself when deliberate, else an ``EngineFailure`` that names only its class:
    an unexpected message might quote a client's text."""
    if isinstance(error, PaceError):
        return error
    return EngineFailure(f"unexpected {type(error).__name__}; the server's log has the place")
