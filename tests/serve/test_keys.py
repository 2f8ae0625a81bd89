"""API keys: the file, the gate before every route, and whose sessions a key sees."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from engine.errors import ConfigError
from serve.config import load_serve_config
from serve.engine_client import HandleClient
from serve.keys import ApiKeys, Caller, load_keys
from serve.routes import create_app
from tests.serve.conftest import LIMITS
from tests.support.local_handle import LocalHandle

ALICE, BOB, ROOT = "alice-0123456789ab", "bob-0123456789abcd", "root-0123456789abc"
FILE = f"# keys\n\nalice:{ALICE}\nbob:{BOB}\nroot:{ROOT}:admin\n"
BODY = {"model": "default", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def keys(tmp_path: Path) -> ApiKeys:
    path = tmp_path / "keys"
    path.write_text(FILE)
    return load_keys(path)


@pytest.fixture
def guarded(handle: LocalHandle, keys: ApiKeys) -> Iterator[TestClient]:
    app = create_app(HandleClient(handle), LIMITS, logging.getLogger("pace"), keys)
    with TestClient(app) as client:
        yield client


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (f"Bearer {ALICE}", Caller("alice")),
        (f"bearer  {BOB} ", Caller("bob")),
        (f"Bearer {ROOT}", Caller("root", admin=True)),
        (None, None),
        ("", None),
        ("Bearer", None),
        ("Bearer ", None),
        (ALICE, None),
        (f"Basic {ALICE}", None),
        (f"Bearer {ALICE}x", None),
        (f"Bearer {ALICE[:-1]}", None),
        (f"Bearer {ROOT}:admin", None),
        ("Bearer \u00e9\udce9", None),
    ],
)
def test_who_a_header_names(keys: ApiKeys, header: str | None, expected: Caller | None) -> None:
    assert len(keys) == 3
    assert keys.identify(header) == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "holds no key"),
        ("# only this\n", "holds no key"),
        (f"a b:{ALICE}", "line 1: the name"),
        (f":{ALICE}", "line 1: the name"),
        ("alice", "line 1: the key of 'alice'"),
        ("alice:short", "line 1: the key of 'alice' must be at least 16"),
        (f"alice:{ALICE} more", "line 1: the key of 'alice'"),
        (f"x:{BOB}\nalice:{ALICE}:root", "line 2: after the key of 'alice'"),
        (f"alice:{ALICE}:", "line 1: after the key of 'alice'"),
        (f"alice:{ALICE}\nalice:{BOB}", "line 2: the name or the key is there twice"),
        (f"alice:{ALICE}\nbob:{ALICE}", "line 2: the name or the key is there twice"),
    ],
)
def test_a_bad_file_names_the_line_and_never_the_key(
    tmp_path: Path, text: str, complaint: str
) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_keys(path)
    assert complaint in caught.value.message and str(path) in caught.value.message
    assert ALICE not in caught.value.message and "short" not in caught.value.message


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_keys(path)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/chat/completions"),
        ("PUT", "/v1/chat/completions"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/default"),
        ("GET", "/metrics"),
        ("GET", "/v1/sessions"),
        ("GET", "/v1/sessions/s"),
        ("DELETE", "/v1/sessions/s"),
        ("GET", "/v1/sessions/s/events"),
        ("POST", "/v1/sessions/s/score"),
        ("PUT", "/v1/sessions/s/blueprint"),
        ("GET", "/openapi.json"),
        ("GET", "/docs"),
        ("GET", "/health/more"),
        ("GET", "/nowhere"),
    ],
)
@pytest.mark.parametrize("headers", [{}, bearer("not-a-key-of-this-server")])
def test_every_route_but_health_needs_a_key(
    guarded: TestClient, method: str, path: str, headers: dict[str, str]
) -> None:
    answer = guarded.request(method, path, headers=headers)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_health_needs_no_key(guarded: TestClient) -> None:
    assert guarded.get("/health").status_code == 200
    assert guarded.get("/health", headers=bearer("wrong")).status_code == 200


def test_a_namespace_is_only_for_its_owner_and_admins(guarded: TestClient) -> None:
    answer = guarded.get("/v1/sessions?namespace=bob", headers=bearer(ALICE))
    assert answer.status_code == 403
    assert answer.json()["error"]["param"] == "namespace"
    assert guarded.get("/v1/sessions?namespace=alice", headers=bearer(ALICE)).status_code == 200
    assert guarded.get("/v1/sessions?namespace=bob", headers=bearer(ROOT)).status_code == 200


def test_other_addresses_are_accepted_with_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys"
    path.write_text(FILE)
    monkeypatch.setenv("PACE_API_KEYS_FILE", str(path))
    assert load_serve_config(None, {"http": {"host": "0.0.0.0"}}).http.host == "0.0.0.0"
