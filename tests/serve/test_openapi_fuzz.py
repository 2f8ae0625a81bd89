"""Requests made up from the OpenAPI document: the server keeps what the document says."""

from __future__ import annotations

import copy
import uuid
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from serve.openapi import openapi_document
from tests.support.server import Server

# Starting the shared server counts to the first test; busy machines need a while for it.
pytestmark = pytest.mark.timeout(240)

# What a schema cannot say: rules between fields, and what the session or the model allows.
BEYOND_SCHEMAS = {
    "max_tokens",  # differs from max_completion_tokens
    "top_logprobs",  # needs logprobs
    "stream_options",  # needs stream
    "tool_choice",  # needs tools
    "prompt_cache_key",  # is the session's id when nothing else is
    "session_id",  # of a blueprint: the path's
    "step",  # of a session only rise
    "plan",
    "segments",  # under strict
    "namespace",  # another's
}


def valid_requests_are_accepted(ctx: Any, response: Any, case: Any) -> None:
    """Whatever the document allows is refused for one of those reasons only."""
    if case.meta.generation.mode.is_positive and response.status_code in (400, 403):
        error = response.json()["error"]
        assert str(error["param"]).removeprefix("pace.") in BEYOND_SCHEMAS, error


CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    valid_requests_are_accepted,
    checks.unsupported_method,
    checks.allow_header_conformance,
]
KNOWN = "known-to-the-fuzzer"
LARGEST_LIST = 100


def within_reason(schema: Any) -> Any:
    """``schema`` without the limits of lists whose test needs a body of megabytes."""
    if isinstance(schema, dict):
        return {
            key: within_reason(value)
            for key, value in schema.items()
            if not (key in ("maxItems", "maxProperties") and value > LARGEST_LIST)
        }
    return [within_reason(item) for item in schema] if isinstance(schema, list) else schema


config = schemathesis.Config.from_dict({"generation": {"deterministic": True}})
document = schemathesis.openapi.from_dict(
    within_reason(openapi_document(keyed=False)), config=config
)


@pytest.fixture
def address(server: Server) -> str:
    """Of a server that holds the session ``KNOWN``; sessions of an earlier test may have taken
    its room."""
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": "x"}],
        "session_id": KNOWN,
        "max_tokens": 1,
    }
    assert httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).is_success
    return server.url


def meaningful(case: Any) -> None:
    """Put what exists in the place of valid names nobody knows, and keep answers short."""
    if case.method != "DELETE" and "session_id" in case.path_parameters:
        case.path_parameters["session_id"] = KNOWN
    if not isinstance(case.body, dict):
        return
    case.body = body = copy.deepcopy(case.body)
    if body.get("model") is not None:
        body["model"] = "default"
    for owner in (body, body.get("pace") or {}):
        if owner.get("policy") is not None:
            owner["policy"] = "pace"
    if case.path == "/v1/chat/completions":
        body["max_tokens"] = 2
        session = uuid.uuid4().hex
        case.headers["X-Session-Id"] = session
        body["stream"] = body.get("stream") if session < "8" else True


@document.parametrize()
@settings(
    derandomize=True,
    database=None,
    max_examples=10,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_answer_is_as_documented(case: Any, address: str) -> None:
    if case.meta.generation.mode.is_positive:
        meaningful(case)
    case.call_and_validate(address, checks=CHECKS, timeout=20)
