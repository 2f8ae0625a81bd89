"""The OpenAPI document: every route, every field, and what a real server answers."""

from __future__ import annotations

import logging
from typing import Any

import httpx
import pytest
import schemathesis
from fastapi.testclient import TestClient
from jsonschema import Draft202012Validator
from starlette.routing import Route

from serve.engine_client import HandleClient
from serve.openapi import openapi_document
from serve.routes import create_app
from serve.wire.chat import ChatBody
from serve.wire.fields import USUAL_VALUES, WITHOUT_EFFECT
from serve.wire.plan import PaceBody
from serve.wire.score import ScoreBody
from tests.serve.conftest import LIMITS
from tests.serve.test_server_chat import fresh
from tests.support.local_handle import LocalHandle


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return openapi_document(keyed=False)


def references(schema: Any) -> set[str]:
    if isinstance(schema, list):
        return {found for item in schema for found in references(item)}
    if not isinstance(schema, dict):
        return set()
    own = {schema["$ref"]} if isinstance(schema.get("$ref"), str) else set()
    return own | {found for value in schema.values() for found in references(value)}


def test_every_route_and_no_other_is_there(document: dict[str, Any], handle: LocalHandle) -> None:
    app = create_app(HandleClient(handle), LIMITS, logging.getLogger("pace"))
    routes = {
        (route.path.replace(":path", ""), method.lower())
        for route in app.routes
        if isinstance(route, Route)
        for method in route.methods or ()
        if method != "HEAD"
    }
    assert ("/v1/sessions/{session_id}/blueprint", "put") in routes
    paths = document["paths"]
    assert {(path, method) for path in paths for method in paths[path]} == routes
    names = [operation["operationId"] for path in paths.values() for operation in path.values()]
    assert len(set(names)) == len(names) == len(routes)


def test_it_is_served_as_it_is(http: TestClient, document: dict[str, Any]) -> None:
    answer = http.get("/openapi.json")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == document
    assert answer.json()["openapi"].startswith("3.1.")


def test_schemas_are_schemas_and_all_of_them_are_used(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    assert references(document) == {f"#/components/schemas/{name}" for name in schemas}


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("ChatBody", set(ChatBody.model_fields) | WITHOUT_EFFECT | set(USUAL_VALUES)),
        ("ScoreBody", set(ScoreBody.model_fields)),
        ("PaceBody", set(PaceBody.model_fields)),
        ("Blueprint", set(PaceBody.model_fields)),
    ],
)
def test_every_field_of_a_request_is_there(
    document: dict[str, Any], name: str, fields: set[str]
) -> None:
    assert set(document["components"]["schemas"][name]["properties"]) == fields


def test_who_needs_a_key(document: dict[str, Any]) -> None:
    assert {} in document["security"]
    keyed = openapi_document(keyed=True)
    assert keyed["security"] == [{"key": []}]
    assert keyed["components"]["securitySchemes"]["key"] | {"description": ""} == {
        "type": "http",
        "scheme": "bearer",
        "description": "",
    }
    free = [p for p, methods in keyed["paths"].items() for m in methods.values() if "security" in m]
    assert free == ["/health"]
    assert keyed["paths"]["/health"]["get"]["security"] == []


@pytest.mark.timeout(240)  # starting the shared server counts to the first test
def test_what_a_real_server_answers(raw: httpx.Client, document: dict[str, Any]) -> None:
    """One answer of each kind, good and bad, of every route."""
    api = schemathesis.openapi.from_dict(document)
    seen = set()

    def ask(status: int, method: str, path: str, url: str, **body: Any) -> httpx.Response:
        answer = raw.request(method, url, json=body or None)
        assert answer.status_code == status, answer.text
        api[path][method].validate_response(answer)
        seen.add((path, method.lower()))
        return answer

    name = fresh()["session_id"]
    chat, session = "/v1/chat/completions", "/v1/sessions/{session_id}"
    new = {"messages": [{"role": "user", "content": "Say it."}]}
    say = {**new, "model": "default", "max_tokens": 3, "session_id": name}
    detailed = {"logprobs": True, "top_logprobs": 2, "pace": {"return_token_ids": True}}
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    plan = {"mode": "append", "plan": {"9": [1], "4": [7]}, "step": 3}
    ask(200, "POST", chat, chat, **say)
    ask(200, "POST", chat, chat, **say, **detailed)
    ask(200, "POST", chat, chat, **say, **streamed)
    ask(200, "POST", chat, chat, **say, **streamed, **detailed)
    answer = ask(200, "POST", chat, chat, **say, pace=plan)
    assert answer.json()["pace"]["unresolved"] and answer.headers["x-session-id"] == name
    ask(400, "POST", chat, chat, **say, temperature=9)
    ask(404, "POST", chat, chat, **{**say, "model": "other"})
    ask(409, "POST", chat, chat, **say, pace={"policy": "h2o", "mode": "append"})
    url = f"/v1/sessions/{name}"
    ask(200, "PUT", f"{session}/blueprint", f"{url}/blueprint", plan={"9": [1], "4": [7]})
    ask(409, "PUT", f"{session}/blueprint", f"{url}/blueprint", policy="h2o")
    ask(200, "POST", f"{session}/score", f"{url}/score", **new, continuations=["a", "bc"])
    ask(404, "POST", f"{session}/score", "/v1/sessions/none/score", **new, continuations=["a"])
    ask(200, "GET", f"{session}/events", f"{url}/events?since=0")
    ask(200, "GET", f"{session}/events", f"{url}/events?since=1&limit=2")
    ask(200, "GET", f"{session}/events", f"{url}/events?kind=turn,eviction&limit=1")
    ask(400, "GET", f"{session}/events", f"{url}/events?since=x")
    views = {
        "residency": ("layers=1-2&start=3", "bins=7&layers=0", "step=987654"),
        "tokens": ("start=2&limit=5", "resident=1&limit=5", "step=987654"),
        "messages": ("start=1&limit=1", "step=3", "step=987654"),
        "steps": ("since=0", "since=1&limit=1"),
    }
    for view, queries in views.items():
        for query in queries:
            status = 404 if "987654" in query else 200
            ask(status, "GET", f"{session}/{view}", f"{url}/{view}?{query}")
        wrong = "limit=0" if view != "residency" else "bins=0"
        ask(400, "GET", f"{session}/{view}", f"{url}/{view}?{wrong}")
    ask(200, "GET", "/v1/sessions", "/v1/sessions")
    ask(403, "GET", "/v1/sessions", "/v1/sessions?namespace=other")
    ask(200, "GET", session, url)
    checked = ask(200, "GET", session, f"{url}?check=1").json()
    assert checked["integrity"] == {"ok": True, "problems": []}
    ask(400, "GET", session, f"{url}?check=yes")
    ask(200, "DELETE", session, url)
    ask(404, "DELETE", session, url)
    ask(200, "GET", "/v1/models", "/v1/models")
    ask(200, "GET", "/v1/models/{model}", "/v1/models/default")
    for path in ("/health", "/metrics", "/openapi.json"):
        ask(200, "GET", path, path)
    assert seen == {
        (path, method) for path in document["paths"] for method in document["paths"][path]
    }
