"""The same clients against a real server: its proxy and its processes in between."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.serve.test_clients import KINDS, MODEL
from tests.support.clients import ChatClient
from tests.support.server import Server

# Starting the shared server counts to the first test; busy machines need a while for it.
pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("quiet")]

TURNS = 3


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_short_session(server: Server, raw: httpx.Client, kind: type[ChatClient]) -> None:
    before = names(raw)
    client = kind(f"{server.url}/v1", MODEL, 8, True)
    for number in range(TURNS):
        assert client.say(f"{kind.__name__} asks the server: {number}")
    (session,) = names(raw) - before
    events = raw.get(f"/v1/sessions/{session}/events").json()["data"]
    turns = [event["data"] for event in events if event["kind"] == "turn"]
    # All but the last token of a turn has been computed, and is not again.
    held = [turn["prompt_tokens"] + turn["completion_tokens"] - 1 for turn in turns]
    assert [turn["cached_tokens"] for turn in turns] == [0, *held[: TURNS - 1]]


def names(raw: httpx.Client) -> set[Any]:
    return {session["session_id"] for session in raw.get("/v1/sessions").json()["data"]}
