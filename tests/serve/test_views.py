"""The routes that show a session: what they pass on, and over the real engine the worst texts."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from tests.serve.test_routes import ask, error_of
from tests.support.local_server import local_server

MEGABYTE = 1_000_000
# six bytes of JSON each; a quote and a backslash; four bytes in UTF-8, one a token
WORST = ("\x01", "\x1f\x00", '"\\', "\U0001f600", "\u2028", "\x7f")


def test_queries_reach_the_engine(http: TestClient) -> None:
    for text in ("one", "two"):
        ask(http, text, pace={"session_id": "s", "mode": "append"})
    of = "/v1/sessions/s"
    window: dict[str, Any] = {"start": 0, "end": None, "limit": None, "step": None}
    everything = window | {"session_id": "s", "layers": [0, None], "bins": None}
    assert http.get(f"{of}/residency").json() == everything
    query = "start=3&end=9&step=2&bins=1024&layers=2-4"
    asked = everything | {"start": 3, "end": 9, "step": 2, "bins": 1024, "layers": [2, 4]}
    assert http.get(f"{of}/residency?{query}").json() == asked
    for text, layers in (("5", [5, 5]), ("5-", [5, None]), ("7-3", [7, 3]), ("0-0", [0, 0])):
        found = http.get(f"{of}/residency?layers={text}").json()
        assert found["layers"] == layers
    tokens = http.get(f"{of}/tokens?start=1&limit=2&resident=1").json()
    assert tokens == window | {"session_id": "s", "start": 1, "limit": 2, "resident": True}
    assert http.get(f"{of}/tokens?resident=0").json()["resident"] is False
    messages = http.get(f"{of}/messages?start=4&end=5&step=2").json()
    assert messages == window | {"session_id": "s", "start": 4, "end": 5, "step": 2}
    steps = http.get(f"{of}/steps").json()
    assert steps == {
        "object": "list",
        "session_id": "s",
        "data": [{"turn": 1}, {"turn": 2}],
        "next": 2,
    }
    assert http.get(f"{of}/steps?since=1&limit=1").json()["data"] == [{"turn": 2}]
    assert http.get(f"{of}/steps?since=9").json()["next"] == 9


def test_what_is_refused(http: TestClient) -> None:
    ask(http, "one", session_id="s")
    for view, name, values in (
        ("residency", "bins", ("0", "1025", "x")),
        ("residency", "layers", ("", "-3", "a-b", "1-2-3")),
        ("tokens", "resident", ("yes",)),
        ("tokens", "limit", ("0",)),
        ("messages", "start", ("-1",)),
        ("steps", "since", ("x",)),
    ):
        for value in values:
            answer = http.get(f"/v1/sessions/s/{view}?{name}={value}")
            assert error_of(answer, 400)["param"] == name
    for view in ("residency", "tokens", "messages"):
        unknown = error_of(http.get(f"/v1/sessions/s/{view}?step=9"), 404)
        assert (unknown["code"], unknown["param"]) == ("step_not_found", "step")
        other = error_of(http.get(f"/v1/sessions/other/{view}"), 404)
        assert (other["code"], other["param"]) == ("session_not_found", "session_id")


def test_the_worst_texts_come_in_pages_below_a_megabyte(
    protocol_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All of them, whatever JSON makes of them, and none of them in a log."""
    texts = [("secret" + one) * 8 + one * (2_500 // len(one.encode())) for one in WORST]
    with (
        caplog.at_level(logging.DEBUG),
        local_server(protocol_model) as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
    ):
        for text in texts:
            body = {
                "model": "default",
                "messages": [{"role": "user", "content": text}],
                "max_tokens": 2,
                "pace": {"session_id": "s", "mode": "append"},
            }
            made = http.post("/v1/chat/completions", json=body)
            assert made.is_success, made.text

        def every(path: str) -> list[Any]:
            found, at = [], 0
            while at is not None:
                answer = http.get(f"/v1/sessions/s/{path}&start={at}")
                assert answer.status_code == 200 and len(answer.content) < MEGABYTE
                found.append(answer.json())
                at = found[-1]["next"]
            return found

        pages = every("tokens?limit=10000")
        ids = [one for page in pages for one in page["data"]["id"]]
        assert len(pages) > 1 and ids == list(server.engine.store.table.get("", "s").state.tokens)
        shown = [row["preview"] for page in every("messages?") for row in page["data"]]
        assert shown[::2] == [text[:200] for text in texts]
        for path in ("residency?bins=1024", "residency?", "tokens?resident=1", "steps?"):
            assert len(http.get(f"/v1/sessions/s/{path}").content) < MEGABYTE
    assert "secret" not in caplog.text
