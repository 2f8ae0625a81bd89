"""The HTTP routes over a fake engine: statuses, envelopes, headers, what reaches the engine."""

from __future__ import annotations

import json
import logging
import threading
import time
from typing import Any

import pytest
from fastapi.testclient import TestClient
from httpx import Response
from ray.exceptions import RayActorError

from tests.support.fake_engine import FakeEngine
from tests.support.local_handle import LocalHandle

CHAT = "/v1/chat/completions"


def ask(http: TestClient, text: str = "Hello", **fields: Any) -> Response:
    headers = fields.pop("headers", {})
    messages = fields.pop("messages", [{"role": "user", "content": text}])
    return http.post(
        CHAT, json={"model": "default", "messages": messages, **fields}, headers=headers
    )


def events(response: Response) -> list[Any]:
    """The stream's events: JSON objects, and text for comments and ``[DONE]``."""
    found: list[Any] = []
    for line in response.text.split("\n\n"):
        if line.startswith(":"):
            found.append(line)
        elif line == "data: [DONE]":
            found.append("[DONE]")
        elif line:
            found.append(json.loads(line.removeprefix("data: ")))
    return found


def error_of(response: Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    body = response.json()
    assert list(body) == ["error"]
    assert list(body["error"]) == ["message", "type", "param", "code"]
    assert body["error"]["message"]
    error: dict[str, Any] = body["error"]
    return error


def test_whole_answer(http: TestClient) -> None:
    response = ask(http, "Hello", pace={"session_id": "s", "return_token_ids": True})
    assert response.status_code == 200
    assert response.headers["x-session-id"] == "s"
    body = response.json()
    assert body["id"].startswith("chatcmpl-")
    assert body["object"] == "chat.completion"
    assert body["model"] == "fake-model"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "token_ids": list(b"Hello"),
        }
    ]
    assert body["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 5,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    assert body["pace"]["session_id"] == "s"
    assert body["pace"]["replica"] == "replica-1"


def test_only_new_messages_reach_the_engine(http: TestClient, engine: FakeEngine) -> None:
    transcript = [{"role": "user", "content": "one"}]
    ask(http, messages=transcript, session_id="s")
    transcript += [{"role": "assistant", "content": "one"}, {"role": "user", "content": "two"}]
    second = ask(http, messages=transcript, session_id="s")
    assert second.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 6
    assert [m.content for m in engine.requests[1].messages] == ["two"]
    assert (engine.requests[1].base, engine.requests[1].known) == ("current", 2)
    assert engine.requests[0].namespace == ""


def test_append_sends_all_messages(http: TestClient, engine: FakeEngine) -> None:
    ask(http, "one", session_id="s")
    ask(http, "two", session_id="s", pace={"mode": "append"})
    assert [m.content for m in engine.requests[1].messages] == ["two"]
    assert engine.requests[1].known == 2


def test_stream(http: TestClient) -> None:
    response = ask(http, "Hello there", stream=True, session_id="s")
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-session-id"] == "s"
    found = events(response)
    assert found[:2] == [": prefill 8/11", ": prefill 11/11"]
    assert found[-1] == "[DONE]"
    chunks = found[2:-1]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == "Hello there"
    assert {c["object"] for c in chunks} == {"chat.completion.chunk"}
    assert len({c["id"] for c in chunks}) == 1
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * 12 + ["stop"]
    assert chunks[-1]["pace"]["session_id"] == "s"
    assert not any("usage" in c for c in chunks)


def test_stream_with_usage(http: TestClient) -> None:
    response = ask(http, "Hello", stream=True, stream_options={"include_usage": True})
    *_, last, usage, done = events(response)
    assert done == "[DONE]"
    assert last["choices"][0]["finish_reason"] == "stop"
    assert "pace" not in last
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 5
    assert usage["pace"]["replica"] == "replica-1"


def test_stream_of_an_empty_answer(http: TestClient) -> None:
    found = events(ask(http, "", stream=True))
    deltas = [c["choices"][0]["delta"] for c in found if isinstance(c, dict)]
    assert deltas == [{"role": "assistant", "content": ""}, {}]


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs(http: TestClient, stream: bool) -> None:
    response = ask(http, "Hi", stream=stream, logprobs=True, top_logprobs=2)
    if stream:
        parts = [c["choices"][0]["logprobs"] for c in events(response) if isinstance(c, dict)]
        content = [entry for part in parts if part for entry in part["content"]]
    else:
        logprobs = response.json()["choices"][0]["logprobs"]
        assert logprobs["refusal"] is None
        content = logprobs["content"]
    assert [entry["token"] for entry in content] == ["H", "i"]
    assert content[0] == {
        "token": "H",
        "logprob": -0.5,
        "bytes": [72],
        "top_logprobs": [
            {"token": "H", "logprob": -0.5, "bytes": [72]},
            {"token": "H", "logprob": -1.5, "bytes": [72]},
        ],
    }


def test_a_failure_after_the_headers_is_an_event(http: TestClient) -> None:
    response = ask(http, "fail later", stream=True)
    assert response.status_code == 200
    last = events(response)[-1]
    assert last["error"]["code"] == "engine_failure"
    assert last["error"]["type"] == "server_error"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "status", "code"),
    [("refuse", 429, "capacity_exceeded"), ("explode", 500, "engine_failure")],
)
def test_a_refused_turn_has_a_status(
    http: TestClient, text: str, status: int, code: str, stream: bool
) -> None:
    response = ask(http, text, stream=stream)
    assert error_of(response, status)["code"] == code
    if status == 429:
        assert response.headers["retry-after"] == "7"


def test_a_failed_turn_has_a_status(http: TestClient) -> None:
    assert error_of(ask(http, "fail"), 500)["code"] == "engine_failure"


def test_conflicts(http: TestClient) -> None:
    ask(http, "one", session_id="s", pace={"policy": "h2o"})
    diverged = ask(http, "other", session_id="s")
    error = error_of(diverged, 409)
    assert (error["type"], error["code"]) == ("conflict_error", "session_diverged")
    assert diverged.headers["x-should-retry"] == "false"
    append = {"session_id": "s", "mode": "append"}
    mismatch = ask(http, "two", pace={**append, "policy": "pace"})
    assert error_of(mismatch, 409) | {"message": ""} == {
        "message": "",
        "type": "conflict_error",
        "param": "pace.policy",
        "code": "policy_mismatch",
    }
    assert error_of(ask(http, "x", pace={"policy": "none"}), 400)["param"] == "pace.policy"


def test_busy_then_deleted(http: TestClient, engine: FakeEngine) -> None:
    answers: list[Response] = []
    first = threading.Thread(target=lambda: answers.append(ask(http, "hang", session_id="s")))
    first.start()
    wait_for(lambda: bool(engine.requests))
    append = {"session_id": "s", "mode": "append"}
    busy = ask(http, "two", pace=append)
    assert error_of(busy, 409)["code"] == "session_busy"
    assert busy.headers["x-should-retry"] == "true"
    assert http.delete("/v1/sessions/s").json() == {
        "id": "s",
        "object": "session.deleted",
        "deleted": True,
    }
    first.join(timeout=10)
    assert error_of(answers[0], 409)["code"] == "cancelled"
    assert error_of(http.delete("/v1/sessions/s"), 404)["code"] == "session_not_found"


def test_wrong_model(http: TestClient) -> None:
    response = http.post(CHAT, json={"model": "gpt-x", "messages": []})
    assert error_of(response, 400)["param"] == "messages"
    error = error_of(
        http.post(CHAT, json={"model": "gpt-x", "messages": [{"role": "user", "content": "x"}]}),
        404,
    )
    assert (error["code"], error["param"]) == ("model_not_found", "model")


def test_models(http: TestClient) -> None:
    listed = http.get("/v1/models").json()
    assert [model["id"] for model in listed["data"]] == ["fake-model"]
    one = http.get("/v1/models/fake-model").json()
    assert one == listed["data"][0]
    assert one["max_model_len"] == one["context_length"] == 10_000_000
    assert error_of(http.get("/v1/models/a/b"), 404)["code"] == "model_not_found"


def test_routing_errors_have_envelopes(http: TestClient) -> None:
    assert error_of(http.get("/v1/nothing"), 404)["code"] == "not_found"
    assert error_of(http.get("/v1/models/"), 404)["type"] == "invalid_request_error"
    wrong = http.put(CHAT)
    assert error_of(wrong, 405)["code"] == "method_not_allowed"
    assert wrong.headers["allow"] == "POST"
    assert http.patch("/v1/sessions/s").headers["allow"] == "DELETE, GET, HEAD"
    assert error_of(http.post(CHAT, content=b"{"), 400)["code"] == "invalid_json"


def test_large_bodies_are_refused(http: TestClient) -> None:
    error = error_of(ask(http, "x" * 20_000), 413)
    assert error["code"] == "request_too_large"

    def pieces() -> Any:
        for _ in range(30):
            yield b" " * 1000

    assert error_of(http.post(CHAT, content=pieces()), 413)["code"] == "request_too_large"


def test_health(http: TestClient, engine: FakeEngine, handle: LocalHandle) -> None:
    assert http.get("/health").json() == {"status": "ok"}
    engine.healthy = False
    assert error_of(http.get("/health"), 503)["code"] == "engine_unavailable"
    engine.healthy = True
    handle.fails = RayActorError()
    assert error_of(http.get("/health"), 503)["code"] == "engine_unavailable"


def test_a_dead_replica_is_503(http: TestClient, handle: LocalHandle) -> None:
    http.get("/v1/models")
    handle.fails = RayActorError()
    for stream in (False, True):
        response = ask(http, stream=stream)
        assert error_of(response, 503)["code"] == "engine_unavailable"
        assert response.headers["x-should-retry"] == "true"


def test_metrics(http: TestClient) -> None:
    ask(http)
    response = http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    labels = '{model="fake-model",replica="replica-1"}'
    assert f"pace_turns_total{labels} 1.0" in response.text
    assert f"pace_sessions{labels} 1.0" in response.text
    assert "# TYPE pace_turns_total counter" in response.text


def test_sessions(http: TestClient) -> None:
    assert http.get("/v1/sessions").json() == {"object": "list", "data": []}
    ask(http, session_id="s")
    assert http.get("/v1/sessions").json()["data"] == [{"session_id": "s", "turns": 1}]
    assert http.get("/v1/sessions/s").json() == {"session_id": "s", "turns": 1}
    assert http.get("/v1/sessions/s?check=0").json() == {"session_id": "s", "turns": 1}
    broken = http.get("/v1/sessions/s?check=1")
    assert broken.status_code == 200
    assert broken.json()["integrity"] == {"ok": False, "problems": ["x"]}
    for bad in ("", "2", "true", "-1"):
        assert error_of(http.get(f"/v1/sessions/s?check={bad}"), 400)["param"] == "check"
    assert error_of(http.get("/v1/sessions/other"), 404)["code"] == "session_not_found"
    assert error_of(http.get("/v1/sessions/a%20b"), 400)["param"] == "session_id"


def test_events(http: TestClient) -> None:
    for text in ("one", "two"):
        ask(http, text, pace={"session_id": "s", "mode": "append"})
    listed = http.get("/v1/sessions/s/events").json()
    assert [event["seq"] for event in listed["data"]] == [1, 2]
    assert listed["next"] == 2
    later = http.get("/v1/sessions/s/events?since=1").json()
    assert later["data"] == [{"seq": 2, "kind": "turn", "step": 2, "data": {"in": 3}}]
    assert http.get("/v1/sessions/s/events?since=2").json()["next"] == 2
    for bad in ("-1", "x", "1.5", ""):
        assert error_of(http.get(f"/v1/sessions/s/events?since={bad}"), 400)["param"] == "since"
    first = http.get("/v1/sessions/s/events?limit=1").json()
    assert ([event["seq"] for event in first["data"]], first["next"]) == ([1], 1)
    for bad in ("0", "-1", "x", ""):
        assert error_of(http.get(f"/v1/sessions/s/events?limit={bad}"), 400)["param"] == "limit"
    turns = http.get("/v1/sessions/s/events?kind=eviction,turn").json()
    assert turns == listed
    assert http.get("/v1/sessions/s/events?kind=eviction,renumber").json()["data"] == []
    for bad in ("x", "", "turn,", "turn, eviction", "Turn"):
        wrong = error_of(http.get(f"/v1/sessions/s/events?kind={bad}"), 400)
        assert (
            wrong["param"] == "kind" and "eviction, renumber, residency, turn" in wrong["message"]
        )


def test_score(http: TestClient) -> None:
    ask(http, session_id="s")
    question = [{"role": "user", "content": "?"}]
    answer = http.post(
        "/v1/sessions/s/score", json={"messages": question, "continuations": ["ab", "c"]}
    ).json()
    assert answer == {
        "object": "session.score",
        "session_id": "s",
        "continuations": [
            {"token_ids": [97, 98], "tokens": ["a", "b"], "logprobs": [-1.0, -1.0]},
            {"token_ids": [99], "tokens": ["c"], "logprobs": [-1.0]},
        ],
        "residency": 1.0,
        "rotary_gap": None,
    }
    for fields, param in (
        ({"continuations": []}, "continuations"),
        ({"continuations": ["x"] * 65}, "continuations"),
        ({"continuations": [""]}, "continuations.0"),
        ({"continuations": ["x"], "more": 1}, "more"),
    ):
        response = http.post("/v1/sessions/s/score", json={"messages": question, **fields})
        assert error_of(response, 400)["param"] == param


def test_one_log_line_per_turn_without_any_text(
    http: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for text in ("SECRET", "fail SECRET", "bug SECRET", "explode SECRET", "refuse SECRET"):
        ask(http, text, headers={"X-Request-Id": "r\n1"}, stream=text.startswith("bug"))
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("turn request=")]
    assert len(lines) == 5
    assert all("request=r?1" in line for line in lines)
    assert "ok finish=stop" in lines[0] and "prompt=6" in lines[0]
    assert all("code=" in line for line in lines[1:])
    assert "ValueError" in caplog.text
    assert "SECRET" not in caplog.text


def wait_for(condition: Any, seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)
