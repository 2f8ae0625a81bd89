"""Sessions of a real server: found, continued, refused, looked at, scored, deleted."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from tests.serve.test_server_chat import ASK, MODEL, chat, endless, fresh

# Starting the shared server counts to the first test; busy machines need a while for it.
pytestmark = pytest.mark.timeout(240)


def said(answer: Any) -> dict[str, str]:
    return {"role": "assistant", "content": answer.choices[0].message.content}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def cached(answer: Any) -> int:
    return int(answer.usage.prompt_tokens_details.cached_tokens)


def name(session: dict[str, str]) -> str:
    return session["session_id"]


@pytest.mark.parametrize("way", ["header", "pace", "session_id", "prompt_cache_key", "none"])
def test_a_resent_transcript_is_computed_once(client: OpenAI, way: str) -> None:
    session = name(fresh())
    fields: dict[str, Any] = {
        "header": {"extra_headers": {"X-Session-Id": session}},
        "pace": {"pace": {"session_id": session}},
        "session_id": {"extra_body": {"session_id": session}},
        "prompt_cache_key": {"prompt_cache_key": session},
        "none": {},
    }[way]
    transcript = [user(f"First of {session}")]
    found, counts = set(), []
    for number in range(3):
        answer = chat(client, transcript, **fields)
        found.add(answer.pace["session_id"])
        counts.append((cached(answer), answer.usage.total_tokens))
        assert answer.pace["step"] == number + 1
        transcript += [said(answer), user(f"Next {number}")]
    assert len(found) == 1
    assert way == "none" or found == {session}
    # All but the last token of a turn has been computed, and is not again.
    assert [count for count, _ in counts] == [0, counts[0][1] - 1, counts[1][1] - 1]


def test_append_mode_continues_without_a_transcript(client: OpenAI) -> None:
    one, two = fresh(), fresh()
    first = chat(client, pace=one)
    appended = chat(client, [user("More")], pace={**one, "mode": "append"})
    chat(client, pace=two)
    resent = chat(client, [*ASK, said(first), user("More")], pace=two)
    assert appended.choices[0].message.content == resent.choices[0].message.content
    assert appended.usage == resent.usage
    assert cached(appended) > 0


def test_the_last_turn_can_be_redone(client: OpenAI) -> None:
    session = fresh()
    first = chat(client, pace=session)
    again = chat(client, pace=session)
    assert again.choices[0].message.content == first.choices[0].message.content
    edited = chat(client, [user("Something else, longer")], pace=session)
    assert edited.usage.prompt_tokens != first.usage.prompt_tokens


def conflict(client: OpenAI, *args: Any, **fields: Any) -> openai.ConflictError:
    with pytest.raises(openai.ConflictError) as caught:
        chat(client, *args, **fields)
    return caught.value


def test_a_contradicting_transcript(client: OpenAI) -> None:
    session = fresh()
    transcript = ASK
    for text in ("two", "three"):
        transcript = [*transcript, said(chat(client, transcript, pace=session)), user(text)]
    chat(client, transcript, pace=session)
    changed = [user("I never said that"), *transcript[1:]]
    error = conflict(client, changed, pace=session)
    assert (error.code, error.type) == ("session_diverged", "conflict_error")
    assert error.param == "messages.0"
    assert error.response.headers["x-should-retry"] == "false"


def test_one_turn_at_a_time(client: OpenAI) -> None:
    session = fresh()
    stream = endless(client, session)
    next(stream)
    error = conflict(client, [user("Me too")], pace={**session, "mode": "append"})
    assert error.code == "session_busy"
    assert error.response.headers["x-should-retry"] == "true"
    stream.close()


def test_a_policy_is_for_life(client: OpenAI) -> None:
    session = fresh()
    chat(client, pace={**session, "policy": "h2o"})
    error = conflict(client, [user("x")], pace={**session, "mode": "append", "policy": "pace"})
    assert (error.code, error.param) == ("policy_mismatch", "pace.policy")


def test_plans_reach_the_engine(client: OpenAI) -> None:
    session = fresh()
    first = chat(client, pace={**session, "plan": {"2": [1]}})
    assert first.pace["residency"] is None
    second = chat(client, [user("Now")], pace={**session, "mode": "append"})
    assert second.pace["residency"] == 1.0
    assert second.pace["rotary_gap"] > 0
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, [user("Then")], pace={**session, "mode": "append", "step": 1})
    assert caught.value.param == "pace.step"


def test_looking_at_sessions(client: OpenAI, raw: httpx.Client) -> None:
    session = name(fresh())
    answer = chat(client, pace={"session_id": session, "policy": "h2o"})
    listed = raw.get("/v1/sessions").json()["data"]
    assert [item["policy"] for item in listed if item["session_id"] == session] == ["h2o"]
    about = raw.get(f"/v1/sessions/{session}").json()
    assert about["tokens"] >= answer.usage.total_tokens
    events = raw.get(f"/v1/sessions/{session}/events").json()
    kinds = [event["kind"] for event in events["data"]]
    assert kinds[-1] == "turn"
    assert events["next"] == events["data"][-1]["seq"]
    later = raw.get(f"/v1/sessions/{session}/events", params={"since": events["next"]}).json()
    assert later["data"] == []


def test_pages_of_the_ledger_are_all_of_it(client: OpenAI, raw: httpx.Client) -> None:
    """And a step's residency comes with each turn, a broken state would be told."""
    session = fresh()
    pace = {**session, "mode": "append"}
    for step in range(4):
        chat(client, [user(f"filler {step} " * 40)], pace=pace)
    path = f"/v1/sessions/{name(session)}"
    whole = raw.get(f"{path}/events").json()["data"]
    seen: list[Any] = []
    while page := raw.get(f"{path}/events?limit=3&since={len(seen)}").json()["data"]:
        assert len(page) <= 3
        seen += page
    assert seen == whole and {"eviction", "residency"} <= {event["kind"] for event in seen}
    steps = [event["step"] for event in seen if event["kind"] == "residency"]
    assert sorted(set(steps)) == [1, 2, 3, 4]
    assert raw.get(path, params={"check": 1}).json()["integrity"] == {"ok": True, "problems": []}


def test_deleting(client: OpenAI, raw: httpx.Client) -> None:
    session = name(fresh())
    chat(client, pace={"session_id": session})
    path = f"/v1/sessions/{session}"
    assert raw.delete(path).json() == {"id": session, "object": "session.deleted", "deleted": True}
    for response in (raw.get(path), raw.delete(path), raw.get(f"{path}/events")):
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "session_not_found"
    assert cached(chat(client, pace={"session_id": session})) == 0


def test_deleting_a_running_session(client: OpenAI, raw: httpx.Client) -> None:
    session = fresh()
    chat(client, pace=session)
    stream = endless(client, {**session, "mode": "append"})
    next(stream)
    assert raw.delete(f"/v1/sessions/{name(session)}").status_code == 200
    with pytest.raises(openai.APIError) as caught:
        list(stream)
    assert caught.value.code == "cancelled"


def test_scoring_is_what_the_chat_says(client: OpenAI, raw: httpx.Client) -> None:
    session = name(fresh())
    chat(client, pace={"session_id": session})
    path = f"/v1/sessions/{session}"
    before = raw.get(path).json()
    question = [user("Which one?")]
    texts = ["abc", "x"]
    body = {"messages": question, "continuations": texts}
    scored = raw.post(f"{path}/score", json=body)
    assert scored.status_code == 200, scored.text
    items = scored.json()["continuations"]
    assert [item["token_ids"] for item in items] == [list(b"abc"), list(b"x")]
    after = raw.get(path).json()
    assert (after["turns"], after["tokens"]) == (before["turns"], before["tokens"])
    # The same distribution, seen through a chat that lists the 20 likeliest first tokens.
    pace = {"session_id": session, "mode": "append"}
    answer = chat(client, question, max_tokens=1, logprobs=True, top_logprobs=20, pace=pace)
    likeliest = {
        bytes(t.bytes): t.logprob for t in answer.choices[0].logprobs.content[0].top_logprobs
    }
    raw.delete(path)
    chat(client, pace={"session_id": session})
    text, logprob = next((k, v) for k, v in likeliest.items() if len(k) == 1 and k.isascii())
    body["continuations"] = [text.decode()]
    again = raw.post(f"{path}/score", json=body).json()["continuations"][0]
    assert again["logprobs"] == pytest.approx([logprob], abs=1e-4)
    missing = raw.post("/v1/sessions/none-such/score", json=body)
    assert missing.json()["error"]["code"] == "session_not_found"


def test_metrics_and_health(client: OpenAI, raw: httpx.Client) -> None:
    def read() -> dict[str, float]:
        families = text_string_to_metric_families(raw.get("/metrics").text)
        return {sample.name: sample.value for family in families for sample in family.samples}

    before = read()
    answer = chat(client, pace=fresh())
    after = read()
    assert after["pace_turns_total"] == before["pace_turns_total"] + 1
    completed = after["pace_completion_tokens_total"] - before["pace_completion_tokens_total"]
    assert completed == answer.usage.completion_tokens
    assert after["pace_pool_bytes"] > 0
    health = raw.get("/health")
    assert (health.status_code, health.json()) == (200, {"status": "ok"})


def test_the_served_name_is_the_one_configured(raw: httpx.Client) -> None:
    assert raw.get("/v1/models").json()["data"][0]["id"] == MODEL
