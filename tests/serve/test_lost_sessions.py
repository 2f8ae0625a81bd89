"""Sessions that went with their engine: who appends is told, and nothing is begun unnoticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient
from httpx import Response

from engine.errors import SessionNotFound
from serve.held_sessions import HeldSessions
from tests.serve.test_routes import ask, error_of
from tests.support.fake_engine import FakeEngine
from tests.support.local_handle import LocalHandle

Replace = Callable[[], FakeEngine]


@pytest.fixture
def replace(handle: LocalHandle) -> Replace:
    """Puts an engine that knows nothing in the place of a dead one."""

    def new() -> FakeEngine:
        handle._replica._engine = FakeEngine()
        engine: FakeEngine = handle._replica._engine
        return engine

    return new


def append(http: TestClient, text: str, session: str, **fields: Any) -> Response:
    return ask(http, text, pace={"session_id": session, "mode": "append"}, **fields)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("begun", ["append", "transcript"])
def test_appending_to_a_lost_session_is_a_404(
    begun: str, stream: bool, http: TestClient, replace: Replace
) -> None:
    first = ask(http, "One", stream=stream, pace={"session_id": "s", "mode": begun})
    assert first.status_code == 200 and first.text
    engine = replace()
    for _ in range(2):  # nor does trying again begin one
        error = error_of(append(http, "Two", "s", stream=stream), 404)
        assert error["code"] == "session_not_found" and "whole transcript" in error["message"]
    assert engine.requests == []
    assert append(http, "One", "other").status_code == 200
    # sent whole, it begins again, and can be appended to
    whole = [
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "?"},
        {"role": "user", "content": "Two"},
    ]
    assert ask(http, messages=whole, pace={"session_id": "s"}).status_code == 200
    assert append(http, "Three", "s").status_code == 200


def test_a_name_that_was_deleted_may_begin_another_session(
    http: TestClient, replace: Replace
) -> None:
    for name in ("kept", "lost"):
        assert append(http, "One", name).status_code == 200
    assert http.delete("/v1/sessions/kept").status_code == 200
    assert append(http, "One", "kept").status_code == 200
    replace()
    error_of(http.delete("/v1/sessions/lost"), 404)  # it is gone already
    assert append(http, "One", "lost").status_code == 200


def test_names_are_kept_apart_by_namespace_and_are_bounded() -> None:
    held = HeldSessions()
    held.add("mine", "s")
    held.check_begins("yours", "s")
    with pytest.raises(SessionNotFound):
        held.check_begins("mine", "s")
    for number in range(9_999):
        held.add("yours", f"{number}")
    with pytest.raises(SessionNotFound):
        held.check_begins("mine", "s")
    held.add("yours", "one more")
    held.check_begins("mine", "s")
