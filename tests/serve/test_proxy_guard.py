"""What stands before Ray's proxy: headers it can read, its own routes closed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from serve.cluster import ray_environment
from serve.proxy_guard import MAX_HEADER_BYTES, ProxyGuard, middlewares

Headers = list[tuple[bytes, bytes]]


def run(
    path: str = "/v1/models", headers: Headers | None = None, kind: str = "http"
) -> tuple[Headers | None, int | None, Any]:
    """The headers the proxy sees (None: nothing), and status and body the guard answers itself."""
    seen: list[Headers] = []
    sent: list[dict[str, Any]] = []

    async def proxy(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["headers"])

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("the guard reads no body")

    scope = {"type": kind, "method": "GET", "path": path, "headers": headers or []}
    asyncio.run(ProxyGuard(proxy)(scope, receive, send))
    if not sent:
        return seen[0], None, None
    assert not seen
    return None, sent[0]["status"], json.loads(sent[1]["body"])["error"]


@pytest.mark.parametrize("name", [b"x-request-id", b"X-Session-Id", b"traceparent"])
def test_ray_can_read_what_it_reads(name: bytes) -> None:
    for value, readable in (
        (b"plain-7", b"plain-7"),
        (b"", b""),
        (b"\xff\xfe", b"??"),
        ("é".encode(), b"??"),
        (b"a\xe9b\xf0\x9f\x98", b"a?b???"),
    ):
        headers, _, _ = run(headers=[(b"host", b"x"), (name, value)])
        assert headers == [(b"host", b"x"), (name, readable)]


def test_other_headers_are_left_alone() -> None:
    given = [(b"authorization", b"Bearer \xff"), (b"x-odd", b"\xe9"), (b"x-odd", b"2")]
    assert run(headers=given)[0] == given


@pytest.mark.parametrize(
    "name",
    [b"serve_multiplexed_model_id", b"serve-multiplexed-model-id", b"Serve_Multiplexed-Model-ID"],
)
def test_no_header_chooses_a_model(name: bytes) -> None:
    assert run(headers=[(name, b"x"), (b"a", b"b")])[0] == [(b"a", b"b")]


@pytest.mark.parametrize("path", ["/-/routes", "/-/healthz", "/-/"])
def test_rays_own_routes_are_closed(path: str) -> None:
    headers, status, error = run(path)
    assert (headers, status, error["code"]) == (None, 404, "not_found")
    assert run("/-")[0] == run("/v1/-/x")[0] == []


def test_headers_have_a_limit() -> None:
    fits = [(b"x" * 10, b"y" * (MAX_HEADER_BYTES - 10))]
    assert run(headers=fits)[0] == fits
    for headers in ([*fits, (b"z", b"")], [(b"x", b"1234567")] * (MAX_HEADER_BYTES // 8 + 1)):
        seen, status, error = run(headers=headers)
        assert (seen, status, error["code"]) == (None, 431, "headers_too_large")


def test_other_connections_pass() -> None:
    given = [(b"x-request-id", b"\xff")]
    assert run("/-/routes", given, kind="websocket")[0] == given


def test_ray_is_told() -> None:
    place = ray_environment()["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"]
    assert place == f"{middlewares.__module__}:{middlewares.__name__}"
    assert ProxyGuard in [middleware.cls for middleware in middlewares()]
