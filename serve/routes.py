"""The HTTP routes, as plain coroutines over an ``EngineClient``.

Bodies are read and validated by ``serve.wire``, not by FastAPI: every mistake gets OpenAI's
error envelope, and a large transcript is parsed once.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from engine.errors import PaceError
from engine.transcript import transcript_digests
from serve import logs
from serve.auth import KeyGate, caller_of
from serve.calls import EngineInfo
from serve.config import LimitsConfig
from serve.engine_client import EngineClient
from serve.keys import ApiKeys
from serve.memory import MemoryMiddleware
from serve.metrics import METRICS_CONTENT_TYPE, render_metrics
from serve.openapi import openapi_document
from serve.release import release
from serve.requests import aside, check_model, read_body
from serve.responses import error_response, http_error
from serve.session_routes import SessionRoutes
from serve.turns import Turn
from serve.wire.answer import AnswerHead
from serve.wire.chat import ChatCall, parse_chat
from serve.wire.errors import as_pace_error
from serve.wire.validation import parse_object

_SSE_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}

Endpoint = Callable[[Request], Awaitable[Response]]


class Routes:
    """Handlers of all routes but those of sessions. Stateless but for the engine's unchanging
    facts."""

    def __init__(
        self, client: EngineClient, limits: LimitsConfig, logger: logging.Logger, keyed: bool
    ) -> None:
        self._client = client
        self._limits = limits
        self._logger = logger
        self._document = openapi_document(keyed)

    async def chat(self, request: Request) -> Response:
        """``POST /v1/chat/completions``."""
        raw = await read_body(request, self._limits.body_bytes)
        header = request.headers.get("x-session-id")
        parse = functools.partial(self._parse_chat, raw, header)
        call, digests = await aside(parse, len(raw))
        info = await self._client.info()
        check_model(call.model, info)
        head = AnswerHead(
            id=f"chatcmpl-{uuid.uuid4().hex}",
            created=int(time.time()),
            model=info.model_name,
            fingerprint=_fingerprint(info),
            replica=info.replica,
        )
        turn = await Turn.begin(
            self._client,
            call,
            digests,
            caller_of(request).name,
            logs.printable(request.headers.get("x-request-id") or uuid.uuid4().hex),
            head,
            self._logger,
        )
        headers = {"X-Session-Id": turn.session_id}
        if not call.stream:
            return JSONResponse(await turn.complete(), headers=headers)
        return StreamingResponse(
            turn.stream(), media_type="text/event-stream", headers=headers | _SSE_HEADERS
        )

    async def models(self, request: Request) -> Response:
        """``GET /v1/models``."""
        info = await self._client.info()
        return JSONResponse({"object": "list", "data": [_model_json(info)]})

    async def model(self, request: Request) -> Response:
        """``GET /v1/models/{id}``; ids of the hub hold slashes."""
        info = await self._client.info()
        check_model(request.path_params["model"], info)
        return JSONResponse(_model_json(info))

    async def health(self, request: Request) -> Response:
        """``GET /health``: 200 only when the engine can serve."""
        await self._client.health()
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """``GET /metrics``."""
        info = await self._client.info()
        text = render_metrics(
            await self._client.stats(), {"model": info.model_name, "replica": info.replica}
        )
        return Response(text, media_type=METRICS_CONTENT_TYPE)

    async def openapi(self, request: Request) -> Response:
        """``GET /openapi.json``."""
        return JSONResponse(self._document)

    def guarded(self, endpoint: Endpoint) -> Endpoint:
        """``endpoint`` with every exception turned into the error envelope."""

        @functools.wraps(endpoint)
        async def guard(request: Request) -> Response:
            try:
                return await endpoint(request)
            except PaceError as error:
                return error_response(error)
            except Exception as error:
                self._logger.error("%s failed: %s", request.url.path, logs.describe(error))
                return error_response(as_pace_error(error))

        return guard

    def _parse_chat(self, raw: bytes, header: str | None) -> tuple[ChatCall, list[bytes]]:
        """The call and the digests of its transcript: the one linear pass over a transcript."""
        call = parse_chat(
            parse_object(raw), session_header=header, max_messages=self._limits.messages
        )
        return call, transcript_digests(
            call.messages, None if call.tools is None else call.tools.definitions or None
        )


def create_app(
    client: EngineClient,
    limits: LimitsConfig,
    logger: logging.Logger,
    keys: ApiKeys | None = None,
) -> FastAPI:
    """The ASGI application. ``keys`` None: everybody may use it."""
    routes = Routes(client, limits, logger, keyed=keys is not None)
    of_sessions = SessionRoutes(client, limits)
    app = FastAPI(title="PACE", openapi_url=None, redirect_slashes=False)
    session = "/v1/sessions/{session_id}"
    table: list[tuple[str, str, Endpoint]] = [
        ("POST", "/v1/chat/completions", routes.chat),
        ("GET", "/v1/models", routes.models),
        ("GET", "/v1/models/{model:path}", routes.model),
        ("GET", "/health", routes.health),
        ("GET", "/metrics", routes.metrics),
        ("GET", "/openapi.json", routes.openapi),
        ("GET", "/v1/sessions", of_sessions.sessions),
        ("GET", session, of_sessions.session),
        ("DELETE", session, of_sessions.delete),
        ("GET", f"{session}/events", of_sessions.events),
        ("GET", f"{session}/residency", of_sessions.residency),
        ("GET", f"{session}/tokens", of_sessions.tokens),
        ("GET", f"{session}/steps", of_sessions.steps),
        ("GET", f"{session}/messages", of_sessions.messages),
        ("PUT", f"{session}/blueprint", of_sessions.blueprint),
        ("POST", f"{session}/score", of_sessions.score),
    ]
    for method, path, endpoint in table:
        app.add_route(path, routes.guarded(endpoint), methods=[method])
    app.add_exception_handler(HTTPException, http_error)
    app.add_middleware(KeyGate, keys=keys)
    app.add_middleware(MemoryMiddleware)
    return app


def _model_json(info: EngineInfo) -> dict[str, Any]:
    return {
        "id": info.model_name,
        "object": "model",
        "created": 0,
        "owned_by": "pace",
        "max_model_len": info.max_session_tokens,
        "context_length": info.max_session_tokens,
    }


def _fingerprint(info: EngineInfo) -> str:
    digest = hashlib.blake2b(f"{info.model_name} {release()}".encode(), digest_size=5)
    return f"fp_{digest.hexdigest()}"
