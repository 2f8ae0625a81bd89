"""The HTTP routes, as plain coroutines over an ``EngineClient``.

Bodies are read and validated by ``serve.wire``, not by FastAPI: every mistake gets OpenAI's
error envelope, and a large transcript is parsed once.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from engine.errors import InvalidRequest, PaceError
from engine.transcript import chain_digests
from serve import logs
from serve.auth import KeyGate, asked_namespace, caller_of
from serve.calls import EngineInfo
from serve.config import LimitsConfig
from serve.engine_client import EngineClient
from serve.keys import ApiKeys
from serve.metrics import METRICS_CONTENT_TYPE, render_metrics
from serve.responses import error_response, http_error
from serve.turns import Turn
from serve.wire.answer import AnswerHead
from serve.wire.chat import ChatCall, parse_chat
from serve.wire.errors import (
    BodyTooLarge,
    ModelNotFound,
    as_pace_error,
)
from serve.wire.plan import check_session_id
from serve.wire.score import parse_score, score_answer
from serve.wire.validation import parse_object

DEFAULT_MODEL = "default"
# Above this size a body is parsed in a thread, so that other streams go on meanwhile.
_PARSE_ASIDE_BYTES = 256 * 1024
_SSE_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}

Endpoint = Callable[[Request], Awaitable[Response]]


class Routes:
    """Handlers of all routes. Stateless but for the engine's unchanging facts."""

    def __init__(self, client: EngineClient, limits: LimitsConfig, logger: logging.Logger) -> None:
        self._client = client
        self._limits = limits
        self._logger = logger

    async def chat(self, request: Request) -> Response:
        """``POST /v1/chat/completions``."""
        raw = await self._read_body(request)
        header = request.headers.get("x-session-id")
        parse = functools.partial(self._parse_chat, raw, header)
        call, digests = await _aside(parse, len(raw))
        info = await self._client.info()
        _check_model(call.model, info)
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
        _check_model(request.path_params["model"], info)
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

    async def sessions(self, request: Request) -> Response:
        """``GET /v1/sessions``: the sessions of the caller's namespace; for an admin, all."""
        caller, asked = caller_of(request), asked_namespace(request)
        everything = caller.admin and asked is None
        found = await self._client.sessions(None if everything else asked or caller.name)
        return JSONResponse({"object": "list", "data": found})

    async def session(self, request: Request) -> Response:
        """``GET /v1/sessions/{id}``."""
        session_id = _session_id(request)
        found = await self._client.session(await self._namespace(request, session_id), session_id)
        return JSONResponse(found)

    async def delete_session(self, request: Request) -> Response:
        """``DELETE /v1/sessions/{id}``: forget it and free its memory."""
        session_id = _session_id(request)
        await self._client.delete(await self._namespace(request, session_id), session_id)
        return JSONResponse({"id": session_id, "object": "session.deleted", "deleted": True})

    async def session_events(self, request: Request) -> Response:
        """``GET /v1/sessions/{id}/events?since=``: ledger entries after ``since``."""
        session_id = _session_id(request)
        since = _since(request.query_params.get("since", "0"))
        namespace = await self._namespace(request, session_id)
        found = await self._client.events(namespace, session_id, since)
        return JSONResponse(
            {
                "object": "list",
                "session_id": session_id,
                "data": [asdict(event) for event in found],
                "next": found[-1].seq if found else since,
            }
        )

    async def score(self, request: Request) -> Response:
        """``POST /v1/sessions/{id}/score``: log-probabilities of given answers."""
        session_id = _session_id(request)
        body = parse_object(await self._read_body(request))
        score, model = parse_score(
            body,
            session_id=session_id,
            namespace=await self._namespace(request, session_id),
            max_messages=self._limits.messages,
        )
        if model is not None:
            _check_model(model, await self._client.info())
        return JSONResponse(score_answer(session_id, await self._client.score(score)))

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

    async def _namespace(self, request: Request, session_id: str) -> str:
        """Whose session of this id is meant: the caller's, or for an admin the only one.

        Raises:
            PermissionDenied: see ``asked_namespace``.
            InvalidRequest: an admin means one of several.
        """
        caller, asked = caller_of(request), asked_namespace(request)
        if asked is not None:
            return asked
        if not caller.admin:
            return caller.name
        every = await self._client.sessions(None)
        owners = {found["namespace"] for found in every if found["session_id"] == session_id}
        if len(owners) > 1:
            raise InvalidRequest(
                f"Several keys have a session '{session_id}': {', '.join(sorted(owners))}. Say "
                "whose with ?namespace=.",
                param="namespace",
            )
        return min(owners, default=caller.name)

    def _parse_chat(self, raw: bytes, header: str | None) -> tuple[ChatCall, list[bytes]]:
        """The call and the digests of its messages: the one linear pass over a transcript."""
        call = parse_chat(
            parse_object(raw), session_header=header, max_messages=self._limits.messages
        )
        return call, list(chain_digests(call.messages))

    async def _read_body(self, request: Request) -> bytes:
        limit = self._limits.body_bytes
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > limit:
            raise _too_large(limit)
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > limit:
                raise _too_large(limit)
        return bytes(body)


def create_app(
    client: EngineClient,
    limits: LimitsConfig,
    logger: logging.Logger,
    keys: ApiKeys | None = None,
) -> FastAPI:
    """The ASGI application. ``keys`` None: everybody may use it."""
    routes = Routes(client, limits, logger)
    app = FastAPI(title="PACE", openapi_url=None, redirect_slashes=False)
    session = "/v1/sessions/{session_id}"
    table: list[tuple[str, str, Endpoint]] = [
        ("POST", "/v1/chat/completions", routes.chat),
        ("GET", "/v1/models", routes.models),
        ("GET", "/v1/models/{model:path}", routes.model),
        ("GET", "/health", routes.health),
        ("GET", "/metrics", routes.metrics),
        ("GET", "/v1/sessions", routes.sessions),
        ("GET", session, routes.session),
        ("DELETE", session, routes.delete_session),
        ("GET", f"{session}/events", routes.session_events),
        ("POST", f"{session}/score", routes.score),
    ]
    for method, path, endpoint in table:
        app.add_route(path, routes.guarded(endpoint), methods=[method])
    app.add_exception_handler(HTTPException, http_error)
    app.add_middleware(KeyGate, keys=keys)
    return app


async def _aside(function: Callable[[], Any], size: int) -> Any:
    return await asyncio.to_thread(function) if size > _PARSE_ASIDE_BYTES else function()


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"The request body is larger than {limit} bytes. With pace.mode 'append' only new "
        "messages are sent."
    )


def _check_model(name: str, info: EngineInfo) -> None:
    if name not in (info.model_name, DEFAULT_MODEL):
        raise ModelNotFound(
            f"The model '{name}' does not exist here; this server serves '{info.model_name}' "
            f"(or '{DEFAULT_MODEL}').",
            param="model",
        )


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
    try:
        release = version("pace-engine")
    except PackageNotFoundError:
        release = "source"
    digest = hashlib.blake2b(f"{info.model_name} {release}".encode(), digest_size=5)
    return f"fp_{digest.hexdigest()}"


def _session_id(request: Request) -> str:
    return check_session_id(request.path_params["session_id"], "session_id")


def _since(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise InvalidRequest(
            "Invalid value for 'since': it must be a whole number from 0.", param="since"
        )
    return int(text)
