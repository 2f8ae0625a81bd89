"""The routes of ``/v1/sessions``: what sessions hold, their plans, scores, and their end."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from engine.errors import InvalidRequest
from serve.auth import asked_namespace, caller_of
from serve.config import LimitsConfig
from serve.engine_client import EngineClient
from serve.requests import (
    MOST_BINS,
    aside,
    check_model,
    flag_of,
    kinds_of,
    layers_of,
    number_of,
    path_session_id,
    read_body,
    window_of,
)
from serve.wire.blueprint import parse_blueprint
from serve.wire.score import parse_score, score_answer
from serve.wire.validation import parse_object


class SessionRoutes:
    """Handlers over an engine. Stateless."""

    def __init__(self, client: EngineClient, limits: LimitsConfig) -> None:
        self._client = client
        self._limits = limits

    async def sessions(self, request: Request) -> Response:
        """``GET /v1/sessions``: the sessions of the caller's namespace; for an admin, all."""
        caller, asked = caller_of(request), asked_namespace(request)
        everything = caller.admin and asked is None
        found = await self._client.sessions(None if everything else asked or caller.name)
        return JSONResponse({"object": "list", "data": found})

    async def session(self, request: Request) -> Response:
        """``GET /v1/sessions/{id}?check=1``: what it holds, and whether that is whole."""
        session_id, check = path_session_id(request), flag_of(request, "check")
        namespace = await self._namespace(request, session_id)
        return JSONResponse(await self._client.session(namespace, session_id, check))

    async def delete(self, request: Request) -> Response:
        """``DELETE /v1/sessions/{id}``: forget it and free its memory."""
        session_id = path_session_id(request)
        await self._client.delete(await self._namespace(request, session_id), session_id)
        return JSONResponse({"id": session_id, "object": "session.deleted", "deleted": True})

    async def events(self, request: Request) -> Response:
        """``GET /v1/sessions/{id}/events?since=&limit=&kind=``: ledger entries after ``since``,
        of all kinds or of those named, at most ``limit`` and as many as fit 1 MB."""
        session_id = path_session_id(request)
        since, limit = number_of(request, "since") or 0, number_of(request, "limit", least=1)
        kinds = kinds_of(request)
        namespace = await self._namespace(request, session_id)
        found = await self._client.events(namespace, session_id, since, limit, kinds)
        return JSONResponse(
            {
                "object": "list",
                "session_id": session_id,
                "data": [asdict(event) for event in found],
                "next": found[-1].seq if found else since,
            }
        )

    async def residency(self, request: Request) -> Response:
        """``GET /v1/sessions/{id}/residency?bins=&step=&layers=&start=&end=``: resident tokens by
        layer, slot by slot or in bins, after the last step or a past one."""
        session_id, window, layers = (
            path_session_id(request),
            window_of(request),
            layers_of(request),
        )
        bins = number_of(request, "bins", least=1, most=MOST_BINS)
        namespace = await self._namespace(request, session_id)
        found = await self._client.residency(namespace, session_id, window, layers, bins)
        return JSONResponse(found)

    async def tokens(self, request: Request) -> Response:
        """``GET /v1/sessions/{id}/tokens?start=&end=&step=&resident=1&limit=``: ids and texts, of
        all tokens or of the resident ones."""
        session_id, window = path_session_id(request), window_of(request)
        resident = flag_of(request, "resident")
        namespace = await self._namespace(request, session_id)
        return JSONResponse(await self._client.tokens(namespace, session_id, window, resident))

    async def steps(self, request: Request) -> Response:
        """``GET /v1/sessions/{id}/steps?since=&limit=``: figures of the turns after turn
        ``since``."""
        session_id = path_session_id(request)
        since, limit = number_of(request, "since") or 0, number_of(request, "limit", least=1)
        namespace = await self._namespace(request, session_id)
        found = await self._client.steps(namespace, session_id, since, limit)
        last = found[-1]["turn"] if found else since
        return JSONResponse(
            {"object": "list", "session_id": session_id, "data": found, "next": last}
        )

    async def messages(self, request: Request) -> Response:
        """``GET /v1/sessions/{id}/messages?start=&end=&step=&limit=``: spans, readers, residents
        and the beginning of the text."""
        session_id, window = path_session_id(request), window_of(request)
        namespace = await self._namespace(request, session_id)
        return JSONResponse(await self._client.messages(namespace, session_id, window))

    async def blueprint(self, request: Request) -> Response:
        """``PUT /v1/sessions/{id}/blueprint``: another plan, between two turns."""
        session_id = path_session_id(request)
        raw = await read_body(request, self._limits.body_bytes)
        change, policy = await aside(
            lambda: parse_blueprint(parse_object(raw), session_id), len(raw)
        )
        namespace = await self._namespace(request, session_id)
        kept = await self._client.blueprint(namespace, session_id, change, policy)
        return JSONResponse({"object": "session.blueprint", **kept})

    async def score(self, request: Request) -> Response:
        """``POST /v1/sessions/{id}/score``: log-probabilities of given answers."""
        session_id = path_session_id(request)
        raw = await read_body(request, self._limits.body_bytes)
        namespace = await self._namespace(request, session_id)
        score, model = await aside(
            lambda: parse_score(
                parse_object(raw),
                session_id=session_id,
                namespace=namespace,
                max_messages=self._limits.messages,
            ),
            len(raw),
        )
        if model is not None:
            check_model(model, await self._client.info())
        return JSONResponse(score_answer(session_id, await self._client.score(score)))

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
