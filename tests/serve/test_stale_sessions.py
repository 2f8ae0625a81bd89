"""A session that changes between being found and being taken: the ingress looks again."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from engine.errors import (
    PaceError,
    PolicyMismatch,
    ReasoningDiverged,
    SessionBusy,
    SessionDiverged,
)
from engine.transcript import EMPTY_DIGEST, chain_digests
from engine.types import Message
from tests.serve.test_routes import ask, error_of
from tests.support.fake_engine import FakeEngine

BUSY, CHANGED = SessionBusy("another turn runs"), SessionDiverged("it changed since")


@pytest.mark.parametrize("stale", [[CHANGED], [BUSY], [BUSY, CHANGED, CHANGED]])
def test_it_is_looked_up_again(
    http: TestClient, engine: FakeEngine, stale: list[PaceError]
) -> None:
    engine.stale = list(stale)
    assert ask(http, "Hello").status_code == 200
    assert len(engine.requests) == 1 and not engine.stale


def test_a_named_session_may_be_busy(http: TestClient, engine: FakeEngine) -> None:
    engine.stale = [BUSY]
    assert error_of(ask(http, "Hello", session_id="s"), 409)["code"] == "session_busy"


@pytest.mark.parametrize(
    "error", [SessionBusy("runs"), PolicyMismatch("other"), ReasoningDiverged("changed")]
)
def test_what_stays_as_it_is_is_not_asked_again(
    error: PaceError, http: TestClient, engine: FakeEngine
) -> None:
    """The messages may be 60 MB, and would be sent five times."""
    engine.stale = [error] * 100
    assert ask(http, "Hello", session_id="s").status_code == 409
    assert len(engine.stale) == 99
    engine.stale = [error]
    assert ask(http, "Hello").status_code == 200  # it gets a session of its own


def test_one_that_changes_for_ever_is_given_up(http: TestClient, engine: FakeEngine) -> None:
    engine.stale = [CHANGED] * 100
    assert error_of(ask(http, "Hello", session_id="s"), 409)["code"] == "session_diverged"
    assert len(engine.stale) > 90


def test_a_request_says_what_it_was_matched_to(http: TestClient, engine: FakeEngine) -> None:
    first = ask(http, "Hello", session_id="s").json()["choices"][0]["message"]["content"]
    history = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": first},
    ]
    body = {"model": "default", "session_id": "s"}
    messages = [*history, {"role": "user", "content": "More"}]
    assert http.post("/v1/chat/completions", json={**body, "messages": messages}).status_code == 200
    added = {**body, "messages": messages[2:], "pace": {"mode": "append"}}
    assert http.post("/v1/chat/completions", json=added).status_code == 200
    held = list(chain_digests([Message("user", "Hello"), Message("assistant", first)]))
    assert [item.digest for item in engine.requests] == [EMPTY_DIGEST, held[1], None]
