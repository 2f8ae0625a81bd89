"""What the routes read from a request: its body, its session's id, the model it names."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import TypeVar

from ray.exceptions import RayError
from starlette.requests import ClientDisconnect, Request

from engine.errors import InvalidRequest
from engine.ledger import KINDS
from engine.types import Window
from serve.calls import EngineInfo
from serve.wire.errors import BodyTooLarge, ModelNotFound
from serve.wire.plan import check_session_id

T = TypeVar("T")

DEFAULT_MODEL = "default"
MOST_BINS = 1024
LAYERS = "^([0-9]{1,9})(?:(-)([0-9]{1,9})?)?$"
"""How ``layers`` is written."""
# Above this size a body is parsed in a thread, so that other streams go on meanwhile.
_PARSE_ASIDE_BYTES = 256 * 1024


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body.

    Raises:
        BodyTooLarge: it has more than ``limit`` bytes, read or announced.
        InvalidRequest: the client went away before its end; nobody reads the answer.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise _too_large(limit)
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > limit:
                raise _too_large(limit)
    except (ClientDisconnect, RayError):  # Ray passes a broken connection on as its own errors
        raise InvalidRequest("The body ends too early.", code="incomplete_body") from None
    return bytes(body)


async def aside(parse: Callable[[], T], size: int) -> T:
    """``parse()`` of a body of ``size`` bytes."""
    return await asyncio.to_thread(parse) if size > _PARSE_ASIDE_BYTES else parse()


def check_model(name: str, info: EngineInfo) -> None:
    """Raise ModelNotFound unless ``name`` is the model served, or ``default``."""
    if name not in (info.model_name, DEFAULT_MODEL):
        raise ModelNotFound(
            f"The model '{name}' does not exist here; this server serves '{info.model_name}' "
            f"(or '{DEFAULT_MODEL}').",
            param="model",
        )


def path_session_id(request: Request) -> str:
    """The session id in the path. Raises InvalidRequest when it is none."""
    return check_session_id(request.path_params["session_id"], "session_id")


def number_of(request: Request, name: str, least: int = 0, most: int | None = None) -> int | None:
    """The whole number from ``least`` to ``most`` of the query's ``name``; None when it is not
    given.

    Raises:
        InvalidRequest: it is something else.
    """
    text = request.query_params.get(name)
    if text is None:
        return None
    plain = text.isascii() and text.isdecimal() and len(text) <= 18
    if not plain or int(text) < least or (most is not None and int(text) > most):
        to = "" if most is None else f" to {most}"
        raise InvalidRequest(
            f"Invalid value for '{name}': it must be a whole number from {least}{to}.", param=name
        )
    return int(text)


def kinds_of(request: Request) -> tuple[str, ...]:
    """The query's ``kind``: names of ledger entries with commas between; all when it is not given.

    Raises:
        InvalidRequest: it names another.
    """
    text = request.query_params.get("kind")
    if text is None:
        return KINDS
    kinds = tuple(text.split(","))
    for kind in kinds:
        if kind not in KINDS:
            raise InvalidRequest(
                f"Invalid value for 'kind': there is no {kind[:50]!r}, only {', '.join(KINDS)}.",
                param="kind",
            )
    return kinds


def window_of(request: Request) -> Window:
    """What the query's ``start``, ``end``, ``limit`` and ``step`` ask for. Raises
    InvalidRequest."""
    return Window(
        number_of(request, "start") or 0,
        number_of(request, "end"),
        number_of(request, "limit", least=1),
        number_of(request, "step"),
    )


def layers_of(request: Request) -> tuple[int, int | None]:
    """First and last of the query's ``layers``: ``3``, ``3-5``, or ``3-`` (to the last: None).
    Raises InvalidRequest."""
    text = request.query_params.get("layers", "0-")
    found = re.fullmatch(LAYERS, text, re.ASCII)
    if found is None:
        raise InvalidRequest(
            "Invalid value for 'layers': it must be a layer, or two with a hyphen between (as in "
            "3, 3-5 or 3-).",
            param="layers",
        )
    first, hyphen, last = found.groups()
    return int(first), int(last) if last else None if hyphen else int(first)


def flag_of(request: Request, name: str) -> bool:
    """Whether the query's ``name`` is 1; 0 is the default. Raises InvalidRequest."""
    text = request.query_params.get(name, "0")
    if text not in ("0", "1"):
        raise InvalidRequest(f"Invalid value for '{name}': it must be 0 or 1.", param=name)
    return text == "1"


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"The request body is larger than {limit} bytes. With pace.mode 'append' only new "
        "messages are sent."
    )
