"""Reading a body: whole, too large, broken off."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from ray.exceptions import RayError, TaskCancelledError
from starlette.requests import Request

from engine.errors import InvalidRequest
from serve.requests import read_body
from serve.wire.errors import BodyTooLarge

LIMIT = 10


def read(messages: Iterable[Any], headers: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """The body that arrives in ``messages``; an exception among them is raised."""
    coming = iter(messages)

    async def receive() -> Any:
        message = next(coming)
        if isinstance(message, Exception):
            raise message
        return message

    scope = {"type": "http", "method": "POST", "path": "/", "headers": list(headers)}
    return asyncio.run(read_body(Request(scope, receive), LIMIT))


def piece(body: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


def test_a_body_in_pieces() -> None:
    assert read([piece(b"01234"), piece(b""), piece(b"56789", more=False)]) == b"0123456789"
    assert read([piece(b"", more=False)], [(b"content-length", b"10")]) == b""


def test_too_large() -> None:
    with pytest.raises(BodyTooLarge):
        read([], [(b"content-length", b"11")])
    with pytest.raises(BodyTooLarge):
        read([piece(b"0123456789"), piece(b"x")])


@pytest.mark.parametrize(
    "end", [{"type": "http.disconnect"}, TaskCancelledError(), RayError("the proxy is gone")]
)
def test_an_upload_that_breaks_off_is_the_clients_doing(end: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read([piece(b"0123"), end])
    assert caught.value.code == "incomplete_body"
