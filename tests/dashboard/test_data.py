"""Reading the API: pages, gaps in arrays, and answers nobody wants."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import streamlit as st

from dashboard import data, server
from dashboard.data import Key
from dashboard.server import ReadFailed, Server

Answers = dict[str, list[dict[str, Any]]]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answers]:
    """Path → answers, one after the other; a server gives them."""
    given: Answers = {}

    def answer(request: httpx.Request) -> httpx.Response:
        left = given[request.url.path.removeprefix("/v1/sessions/s")]
        found = left.pop(0)
        wanted = found.pop("?", {})
        assert wanted.items() <= dict(request.url.params).items(), request.url
        return httpx.Response(found.pop("status", 200), content=json.dumps(found))

    client = httpx.Client(transport=httpx.MockTransport(answer), base_url="http://pace")
    monkeypatch.setattr(server, "_client", lambda _: client)
    st.cache_data.clear()
    yield given
    st.cache_data.clear()
    assert not any(given.values()), "not all was read"


KEY = Key(Server("http://pace"), "s", "1")


def turn(number: int, **fields: Any) -> dict[str, Any]:
    times = {"queued_s": 0.5, "prefill_s": 1.0}
    return {"turn": number, "step": number, "by_class": {"sink": 4}, "times": times} | fields


def test_lists_are_read_to_their_end(answers: Answers) -> None:
    answers["/steps"] = [
        {"data": [turn(1), turn(2)], "next": 2},
        {"?": {"since": "2"}, "data": [turn(3)], "next": 3},
        {"?": {"since": "3"}, "data": [], "next": 3},
    ]
    found = data.steps(KEY)
    assert list(found["turn"]) == [1, 2, 3]
    assert list(found["class_sink"]) == [4, 4, 4] and list(found["prefill_s"]) == [1.0] * 3


def test_a_list_that_does_not_go_on_ends(answers: Answers) -> None:
    answers["/events"] = [{"data": [], "next": 0}]
    assert data.events(KEY, "eviction") == []


def test_only_the_kinds_that_are_wanted_are_asked_for(answers: Answers) -> None:
    asked = {"kind": "eviction"}
    answers["/events"] = [
        {"?": asked, "data": [{"seq": 2, "kind": "eviction"}], "next": 2},
        {"?": asked, "data": [], "next": 2},
    ]
    assert [event["seq"] for event in data.events(KEY, "eviction")] == [2]


def test_layers_come_in_parts(answers: Answers) -> None:
    def part(layers: list[int], following: int | None) -> dict[str, Any]:
        rows = {"counts": [[layer, 0] for layer in layers], "class": [[3, -1] for _ in layers]}
        holes = {name: [[1.5, None] for _ in layers] for name in ("next_use", "score")}
        bins = {"edges": [0, 5, 10], **rows, **holes}
        return {"bins": bins, "at": 10, "resolution": "exact", "next_layer": following}

    answers["/residency"] = [
        {"?": {"layers": "0-", "bins": "2"}, **part([0, 1], 2)},
        {"?": {"layers": "2-"}, **part([2], None)},
    ]
    found = data.residency(KEY, 3, 2, 0, 10)
    assert found.counts.tolist() == [[0, 0], [1, 0], [2, 0]]
    assert np.isnan(found.score[:, 1]).all() and found.score[2, 0] == 1.5
    frame = found.frame()
    assert frame[["layer", "start", "end", "resident"]].to_numpy().tolist() == [
        [1, 0, 5, 1],
        [2, 0, 5, 2],
    ]


def test_readers_of_the_past_and_to_come_are_one_list(answers: Answers) -> None:
    row = {"message": 1, "step": 1, "start": 5, "end": 9, "resident": [2, 4]}
    answers["/messages"] = [
        {"?": {"start": "0", "step": "7"}, "data": [row | {"readers": [7, 9], "read_by": [3, 7]}]}
        | {"next": 500},
        {"?": {"start": "500"}, "data": [row | {"readers": [], "read_by": []}], "next": None},
    ]
    found = data.messages(KEY, 7, 600)
    assert list(found["readers"]) == [[3, 7, 9], []]
    assert found.loc[0, ["tokens", "least", "most"]].tolist() == [4, 2, 4]


def test_of_very_many_messages_the_newest_are_read(answers: Answers) -> None:
    count = data.MAX_MESSAGES + 50
    answers["/messages"] = [{"?": {"start": "50"}, "data": [], "next": None}]
    assert data.messages(KEY, 7, count).empty


@pytest.mark.parametrize("session_id", ["", "a/b", "<b>", "ä", "x" * 129])
def test_what_is_no_session_id_is_not_asked_for(answers: Answers, session_id: str) -> None:
    with pytest.raises(ReadFailed, match="no session id"):
        data.session(KEY.server, session_id)


def test_json_nested_without_end_is_not_paces(monkeypatch: pytest.MonkeyPatch) -> None:
    deep = httpx.MockTransport(lambda _: httpx.Response(200, content=b"[" * 100_000))
    client = httpx.Client(transport=deep, base_url="http://pace")
    monkeypatch.setattr(server, "_client", lambda _: client)
    with pytest.raises(ReadFailed, match="not a PACE server"):
        KEY.server.get("/sessions")


@pytest.mark.parametrize("key", ["schlüssel", "a\nb", "a b", "\0", "\udc80", "😀"])
def test_a_key_that_no_header_can_carry_is_not_sent(answers: Answers, key: str) -> None:
    with pytest.raises(ReadFailed, match="does not accept") as failed:
        Server("http://pace", key).get("/sessions")
    assert failed.value.status == 401 and "PACE_API_KEY" in failed.value.advice


def test_what_the_server_complains_of_is_passed_on(answers: Answers) -> None:
    error = {"message": "step 3 is no longer held", "code": "step_not_found"}
    answers["/messages"] = [{"status": 404, "error": error}]
    with pytest.raises(ReadFailed, match="step 3 is no longer held") as failed:
        data.messages(KEY, 3, 5)
    assert failed.value.status == 404 and "another step" in failed.value.advice


def test_a_failure_is_not_remembered(answers: Answers) -> None:
    answers["/steps"] = [
        {"status": 503, "error": {"message": "busy"}},
        {"data": [turn(1)], "next": 1},
        {"data": [], "next": 1},
    ]
    with pytest.raises(ReadFailed, match="busy"):
        data.steps(KEY)
    assert len(data.steps(KEY)) == 1


def test_a_new_turn_makes_a_new_key() -> None:
    about = {"session_id": "s", "created": 1.0, "turns": 3, "tokens": 90, "last_used": 2.0}
    key = data.key_of(KEY.server, about)
    assert key == data.key_of(KEY.server, about)
    for change in ({"turns": 4}, {"created": 9.0}, {"tokens": 91}, {"last_used": 3.0}):
        assert data.key_of(KEY.server, about | change) != key
