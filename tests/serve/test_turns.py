"""A session found by its transcript, for a client that named none, must not be a conflict."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from fastapi.testclient import TestClient

from engine.types import Match
from tests.serve.test_routes import ask, error_of
from tests.support.fake_engine import FakeEngine


class Finds(FakeEngine):
    """An engine whose session "found" matches every transcript."""

    def match(
        self,
        namespace: str,
        session_id: str | None,
        digests: Sequence[bytes],
        *,
        append: bool = False,
    ) -> Match:
        if session_id is None and len(digests) > 1:
            return Match("found", "current", 0)
        return super().match(namespace, session_id, digests, append=append)


@pytest.fixture
def engine() -> FakeEngine:
    return Finds()


def test_another_policy_than_that_of_the_session_found_begins_a_new_one(http: TestClient) -> None:
    assert ask(http, "hello", pace={"policy": "h2o"}).headers["x-session-id"] == "found"
    assert ask(http, "hello", pace={"policy": "h2o"}).headers["x-session-id"] == "found"
    answer = ask(http, "hello", pace={"policy": "full"})
    assert answer.status_code == 200
    assert answer.headers["x-session-id"].startswith("made-")
    # who names the session is told
    named = {"policy": "full", "mode": "append"}
    error = error_of(ask(http, "hello", session_id="found", pace=named), 409)
    assert error["code"] == "policy_mismatch"
