"""The OpenAPI 3.1 document of ``GET /openapi.json``: every route, what it takes and gives."""

from __future__ import annotations

from typing import Any

from serve.metrics import METRICS_CONTENT_TYPE
from serve.openapi_answers import SESSION_ID, Schema, answer_schemas, ref
from serve.openapi_parameters import (
    BINS,
    CHECK,
    END,
    EVENTS_SINCE,
    HEADERS,
    KIND,
    LAYERS,
    LIMIT,
    MODEL,
    NAMESPACE,
    RESIDENT,
    SESSION,
    START,
    STEP,
    TURNS_SINCE,
)
from serve.openapi_requests import request_schemas
from serve.openapi_views import view_schemas
from serve.release import release

_DESCRIPTION = (
    "An OpenAI-compatible server for long agent sessions. What is not said here is as in OpenAI's "
    "API. A value that would change the output and is not supported is refused with its `param`."
)
_EVENTS = (
    "Each event is a `data:` line with a chunk; the last is `[DONE]`, or an error when the turn "
    "fails after the headers. Comment lines show the prefill's progress."
)
_REASONS = {
    400: "The request is wrong; `param` names the field.",
    401: "No key of this server was given.",
    403: "The key does not allow to look into another namespace.",
    404: "There is no such session, step or model.",
    409: "The request contradicts the session (`session_busy`, `session_diverged`, "
    "`policy_mismatch`), or its turn was cancelled.",
    413: "The body is too large.",
    429: "No room for another session now.",
    431: "The headers are too large.",
    500: "The turn failed and was rolled back.",
    503: "No engine answers now.",
}


def openapi_document(keyed: bool) -> dict[str, Any]:
    """The document. ``keyed``: the server has API keys, so every request needs one."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "PACE", "version": release(), "description": _DESCRIPTION},
        "servers": [{"url": "/"}],
        "security": [{"key": []}] if keyed else [{}, {"key": []}],
        "paths": _paths(),
        "components": {
            "schemas": {**request_schemas(), **answer_schemas(), **view_schemas()},
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A key of the server's PACE_API_KEYS_FILE. A server without "
                    "that file takes any.",
                }
            },
        },
    }


def _paths() -> dict[str, Any]:
    session = "/v1/sessions/{session_id}"
    one: list[Schema] = [SESSION, NAMESPACE]
    chat = _operation(
        "createChatCompletion",
        "Answer a conversation.",
        _json("ChatCompletion") | {"text/event-stream": _events()},
        (400, 401, 404, 409, 413, 429, 500, 503),
        parameters=HEADERS,
        body="ChatBody",
    )
    chat["responses"]["200"]["headers"] = {
        "X-Session-Id": {"required": True, "schema": SESSION_ID, "description": "The session."}
    }
    health = _operation("getHealth", "Whether the engine can serve.", _json("Health"), (503,))
    health["security"] = []
    text = {METRICS_CONTENT_TYPE: {"schema": {"type": "string"}}}
    document = {"application/json": {"schema": {"type": "object"}}}
    known = (400, 401, 403, 404, 500, 503)
    return {
        "/v1/chat/completions": {"post": chat},
        "/v1/models": {
            "get": _operation("listModels", "The model.", _json("ModelList"), (401, 500, 503))
        },
        "/v1/models/{model}": {
            "get": _operation(
                "getModel", "The model.", _json("Model"), (401, 404, 500, 503), [MODEL]
            )
        },
        "/health": {"get": health},
        "/metrics": {"get": _operation("getMetrics", "Prometheus text.", text, (401, 500, 503))},
        "/openapi.json": {
            "get": _operation("getOpenApi", "This document.", document, (401,)),
        },
        "/v1/sessions": {
            "get": _operation(
                "listSessions",
                "The sessions of the caller; for an admin all.",
                _json("SessionList"),
                (401, 403, 500, 503),
                [NAMESPACE],
            )
        },
        session: {
            "get": _operation(
                "getSession", "What it holds.", _json("Session"), known, [*one, CHECK]
            ),
            "delete": _operation(
                "deleteSession", "Forget it.", _json("SessionDeleted"), known, one
            ),
        },
        f"{session}/events": {
            "get": _operation(
                "listEvents",
                "Its ledger.",
                _json("EventList"),
                known,
                [*one, EVENTS_SINCE, LIMIT, KIND],
            )
        },
        f"{session}/residency": {
            "get": _operation(
                "getResidency",
                "What is resident in each layer.",
                _json("Residency"),
                known,
                [*one, BINS, STEP, LAYERS, START, END],
            )
        },
        f"{session}/tokens": {
            "get": _operation(
                "listTokens",
                "Its tokens: ids, texts, and how they are held.",
                _json("TokenList"),
                known,
                [*one, RESIDENT, STEP, START, END, LIMIT],
            )
        },
        f"{session}/steps": {
            "get": _operation(
                "listSteps",
                "Its turns.",
                _json("StepList"),
                known,
                [*one, TURNS_SINCE, LIMIT],
            )
        },
        f"{session}/messages": {
            "get": _operation(
                "listMessages",
                "Its messages: spans, readers, residents.",
                _json("SessionMessageList"),
                known,
                [*one, STEP, START, END, LIMIT],
            )
        },
        f"{session}/blueprint": {
            "put": _operation(
                "putBlueprint",
                "Another plan, between two turns. Parts left out stay.",
                _json("BlueprintAnswer"),
                (*known, 409, 413),
                one,
                "Blueprint",
            )
        },
        f"{session}/score": {
            "post": _operation(
                "scoreContinuations",
                "Log-probabilities of given answers to new messages. Nothing is committed.",
                _json("Scores"),
                (*known, 409, 413, 429),
                one,
                "ScoreBody",
            )
        },
    }


def _operation(
    name: str,
    summary: str,
    content: dict[str, Any],
    errors: tuple[int, ...],
    parameters: list[Schema] | None = None,
    body: str | None = None,
) -> dict[str, Any]:
    """One method of a path. ``content``: of 200, by media type. ``body``: its component."""
    made: dict[str, Any] = {
        "operationId": name,
        "summary": summary,
        "parameters": parameters or [],
        "responses": {
            "200": {"description": "As asked.", "content": content},
            **{str(status): _error(status) for status in sorted((*errors, 431))},
        },
    }
    if body is not None:
        made["requestBody"] = {"required": True, "content": _json(body)}
    return made


def _error(status: int) -> dict[str, Any]:
    headers: dict[str, Any] = {
        "x-should-retry": {
            "required": True,
            "schema": {"type": "string", "enum": ["true", "false"]},
        }
    }
    if status == 429:
        headers["Retry-After"] = {"required": True, "schema": {"type": "integer", "minimum": 0}}
    if status == 401:
        headers["WWW-Authenticate"] = {"required": True, "schema": {"const": "Bearer"}}
    return {"description": _REASONS[status], "headers": headers, "content": _json("Error")}


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": ref(name)}}


def _events() -> dict[str, Any]:
    """The schema of each event of a stream."""
    chunk = {"anyOf": [ref("ChatCompletionChunk"), ref("Error")]}
    json = {"type": "string", "contentMediaType": "application/json", "contentSchema": chunk}
    data = {"anyOf": [{"const": "[DONE]"}, json]}
    event = {"type": "object", "properties": {"data": data}, "required": ["data"]}
    return {"schema": event | {"description": _EVENTS}}
