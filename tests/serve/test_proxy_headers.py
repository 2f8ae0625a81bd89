"""Headers that Serve's proxy reads before our routes: no value of theirs does harm."""

from __future__ import annotations

import time

import httpx
import pytest

from tests.serve.test_server_chat import ASK, MODEL

pytestmark = pytest.mark.timeout(240)

CHAT = "/v1/chat/completions"
BODY = {"model": MODEL, "messages": ASK, "max_tokens": 100, "ignore_eos": True}
NOT_UTF8 = b"a\xff"


@pytest.mark.parametrize(
    "name", ["X-Request-Id", "Authorization", "serve_multiplexed_model_id", "traceparent", "X-Any"]
)
def test_a_value_that_is_not_utf8(raw: httpx.Client, name: str) -> None:
    answer = raw.post(CHAT, json=BODY, headers={name: NOT_UTF8})
    assert answer.status_code == 200, answer.text


def test_a_session_id_that_is_not_utf8(raw: httpx.Client) -> None:
    answer = raw.post(CHAT, json=BODY, headers={"X-Session-Id": NOT_UTF8})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "X-Session-Id"


def test_serves_own_timeout_is_not_the_clients(raw: httpx.Client) -> None:
    answer = raw.post(CHAT, json=BODY, headers={"X-Request-Timeout-Seconds": "0.001"})
    assert answer.status_code == 200, answer.text


def test_leaving_always_cancels(raw: httpx.Client) -> None:
    session = "leaving-always-cancels"
    endless = {**BODY, "max_tokens": 10**6, "session_id": session}
    with pytest.raises(httpx.ReadTimeout):
        raw.post(CHAT, json=endless, headers={"X-Request-Disconnect-Disabled": "?1"}, timeout=1)
    end = time.monotonic() + 30
    # a session whose turn still runs cannot take another one
    while raw.post(CHAT, json={**BODY, "session_id": session}).status_code == 409:
        assert time.monotonic() < end, "the turn goes on for nobody"
        time.sleep(0.1)
