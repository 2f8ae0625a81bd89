"""``PUT /v1/sessions/{id}/blueprint`` over the routes, and over a real server."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from openai import OpenAI

from engine.types import PlanSegment, PlanUpdate
from serve.engine_client import HandleClient
from serve.keys import load_keys
from serve.routes import create_app
from tests.serve.conftest import LIMITS
from tests.serve.test_keys import ALICE, BOB, FILE, ROOT, bearer
from tests.serve.test_routes import ask, error_of, wait_for
from tests.serve.test_server_chat import chat, fresh
from tests.serve.test_server_sessions import user
from tests.support.fake_engine import FakeEngine
from tests.support.local_handle import LocalHandle

PATH = "/v1/sessions/s/blueprint"


def test_the_fields_of_pace_reach_the_engine(http: TestClient, engine: FakeEngine) -> None:
    ask(http, session_id="s")
    body = {
        "session_id": "s",
        "policy": "pace",
        "plan": {"7": [1, 3], "9": []},
        "segments": [{"messages": [1, 2], "readers": [7, 9]}],
        "strict": True,
        "step": None,
        "mode": "append",
        "return_token_ids": True,
    }
    answer = http.put(PATH, json=body)
    assert answer.status_code == 200
    assert answer.json() == {
        "object": "session.blueprint",
        "session_id": "s",
        "step": 1,
        "unresolved": ["x"],
    }
    wanted = PlanUpdate({7: (1, 3), 9: ()}, (PlanSegment((1, 2), (7, 9)),), strict=True)
    assert engine.blueprints == [wanted]
    assert http.put(PATH, json={}).status_code == 200
    assert engine.blueprints == [wanted, PlanUpdate()]


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"step": 7}, "step", "unsupported_value"),
        ({"step": "7"}, "step", "invalid_value"),
        ({"session_id": "t"}, "session_id", "invalid_value"),
        ({"session_id": "a b"}, "session_id", "invalid_value"),
        ({"plan": {"0": [1]}}, "plan", "invalid_value"),
        ({"plan": {"7": [0]}}, "plan.7.0", "invalid_value"),
        ({"plan": [1]}, "plan", "invalid_value"),
        ({"segments": [{"messages": [0]}]}, "segments.0.readers", "missing_required_parameter"),
        ({"mode": "resume"}, "mode", "invalid_value"),
        ({"strict": "yes"}, "strict", "invalid_value"),
        ({"pace": {"plan": {}}}, "pace", "unknown_parameter"),
        ([], None, "invalid_json"),
    ],
)
def test_refusals_name_the_field(
    http: TestClient, engine: FakeEngine, body: Any, param: str | None, code: str
) -> None:
    ask(http, session_id="s")
    error = error_of(http.put(PATH, json=body), 400)
    assert (error["param"], error["code"]) == (param, code)
    assert engine.blueprints == []


def test_conflicts(http: TestClient, engine: FakeEngine) -> None:
    plan = {"plan": {"7": [1]}}
    assert error_of(http.put(PATH, json=plan), 404)["code"] == "session_not_found"
    assert error_of(http.put("/v1/sessions/a%20b/blueprint", json=plan), 400)["param"]
    assert error_of(http.post(PATH, json=plan), 405)["code"] == "method_not_allowed"
    ask(http, session_id="s")
    error = error_of(http.put(PATH, json={**plan, "policy": "h2o"}), 409)
    assert (error["code"], error["param"]) == ("policy_mismatch", "policy")
    append = {"session_id": "s", "mode": "append"}
    turn = threading.Thread(target=lambda: ask(http, "hang", pace=append))
    turn.start()
    wait_for(lambda: len(engine.requests) == 2)
    busy = http.put(PATH, json=plan)
    assert error_of(busy, 409)["code"] == "session_busy"
    assert busy.headers["x-should-retry"] == "true"
    http.delete("/v1/sessions/s")
    turn.join(timeout=10)
    assert engine.blueprints == []


@pytest.fixture
def guarded(handle: LocalHandle, tmp_path: Path) -> Iterator[TestClient]:
    path = tmp_path / "keys"
    path.write_text(FILE)
    app = create_app(HandleClient(handle), LIMITS, logging.getLogger("pace"), load_keys(path))
    with TestClient(app) as client:
        yield client


def test_a_session_of_another_key_is_not_there(guarded: TestClient) -> None:
    ask(guarded, session_id="s", headers=bearer(ALICE))

    def put(key: str, query: str = "") -> httpx.Response:
        return guarded.put(PATH + query, json={"plan": {}}, headers=bearer(key))

    assert error_of(put("wrong-wrong-wrong-wrong"), 401)["code"] == "invalid_api_key"
    assert error_of(put(BOB), 404)["code"] == "session_not_found"
    assert error_of(put(BOB, "?namespace=alice"), 403)["param"] == "namespace"
    assert error_of(put(ROOT, "?namespace=bob"), 404)["code"] == "session_not_found"
    assert put(ROOT, "?namespace=alice").status_code == 200
    assert put(ALICE).status_code == 200


@pytest.mark.timeout(240)  # starting the shared server counts to the first test
def test_a_real_session_gets_another_plan(client: OpenAI, raw: httpx.Client) -> None:
    session = fresh()
    path = f"/v1/sessions/{session['session_id']}"
    append = {**session, "mode": "append"}
    fact = "the code is 4711, the ship is the Aurora"
    chat(client, [user(fact)], pace={**session, "policy": "pace"})
    answer = raw.put(f"{path}/blueprint", json={"plan": {"4": [1], "5": [9]}})
    assert answer.status_code == 200, answer.text
    about = answer.json()
    assert (about["session_id"], about["step"]) == (session["session_id"], 1)
    assert about["plan"] == {"steps": {"1": [4]}, "messages": {}}
    assert about["unresolved"] == ["step 5 cannot read step 9: it is not earlier"]
    assert raw.get(path).json()["plan"] == about["plan"]
    for step in (2, 3, 4):
        last = chat(client, [user(f"filler {step} " * 30)], pace=append)
        assert last.pace["residency"] == (1.0 if step == 4 else None)
    assert last.pace["evicted"] > 0
    strict = raw.put(f"{path}/blueprint", json={"plan": {"2": [1]}, "strict": True})
    assert error_of(strict, 400)["param"] == "plan"
    wrong = raw.put(f"{path}/blueprint", json={"policy": "h2o"})
    assert error_of(wrong, 409)["code"] == "policy_mismatch"
