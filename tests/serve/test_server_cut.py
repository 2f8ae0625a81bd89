"""A client that is gone at any moment leaves no trace: its session goes on as if the cut turn had
never been, or, when it had been committed by then, with it.

Each life of a session is cut five times, at moments drawn at random, and asked again after each
cut. Then a control session takes the same turns without the cut ones; its answers must be the same,
token by token, with the same log-probabilities.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.raw_http import DATA, PREFILL, RawRequest
from tests.support.scale import scaled
from tests.support.server import Server

# Starting the shared server counts to the first test; busy machines need a while for it.
pytestmark = pytest.mark.timeout(240)

PATH = "/v1/chat/completions"
STAGES = ("sending", "sent", "prefill", "answer", "end")
WAYS = ("transcript", "append", "implicit")
CHUNK = 64
UNENDING = 3000
"""Tokens of an answer that takes seconds: a cut one cannot have ended by itself."""


@dataclass(frozen=True)
class Asked:
    """A turn that was committed. ``answer`` is None when the client never saw all of it."""

    text: str
    max_tokens: int
    answer: Any = None


@dataclass
class Life:
    """One session as its client sees it. ``session_id`` is None until an implicit one is told."""

    way: str
    draw: random.Random
    session_id: str | None = None
    transcript: list[dict[str, str]] = field(default_factory=list)
    committed: list[Asked] = field(default_factory=list)

    def body(self, text: str, max_tokens: int, stream: bool = False) -> dict[str, Any]:
        """A greedy request whose last message is ``text``."""
        user = {"role": "user", "content": text}
        pace: dict[str, Any] = {"return_token_ids": True}
        if self.way != "implicit":
            pace["session_id"] = self.session_id
        if self.way == "append":
            pace["mode"] = "append"
        return {
            "model": "default",
            "messages": [user] if self.way == "append" else [*self.transcript, user],
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "logprobs": True,
            "stream": stream,
            "pace": pace,
        }

    def text(self, least: int, most: int) -> str:
        """A message of so many bytes; no two lives begin with the same one."""
        words = self.draw.choices(("alpha ", "beta ", "gamma,\n", "de", "4 "), k=most)
        return f"{uuid.uuid4().hex} {''.join(words)}"[: self.draw.randint(least, most)]


def gauges(raw: httpx.Client) -> dict[str, float]:
    families = text_string_to_metric_families(raw.get("/metrics").text)
    return {sample.name: sample.value for family in families for sample in family.samples}


def forget_all(raw: httpx.Client) -> None:
    """Delete every session; then nothing of the pool is in use."""
    for about in raw.get("/v1/sessions").json()["data"]:
        assert about["status"] == "idle", about
        assert raw.delete(f"/v1/sessions/{about['session_id']}").status_code == 200
    left = gauges(raw)
    assert (left["pace_sessions"], left["pace_sessions_running"]) == (0, 0)
    assert left["pace_pool_used_bytes"] == 0


@pytest.fixture
def emptied(raw: httpx.Client) -> Iterator[httpx.Client]:
    """The server without sessions, before and afterwards."""
    settle(raw)
    forget_all(raw)
    yield raw
    forget_all(raw)


def settle(raw: httpx.Client) -> None:
    """Wait until no turn runs, and none that was sent is on its way."""
    end = time.monotonic() + 20
    quiet = 0
    while quiet < 3:
        assert time.monotonic() < end, "a turn goes on without its client"
        quiet = quiet + 1 if gauges(raw)["pace_sessions_running"] == 0 else 0
        time.sleep(0.02)


def turns(raw: httpx.Client, session_id: str | None) -> int:
    """Committed turns of a session, 0 when there is none."""
    if session_id is None:
        return 0
    response = raw.get(f"/v1/sessions/{session_id}")
    if response.status_code == 404:
        return 0
    about = response.json()
    assert about["status"] == "idle"
    return int(about["turns"])


def cut_turn(server: Server, life: Life, stage: str) -> tuple[str, int, bool | None]:
    """Begin a turn and cut its connection in ``stage``.

    Returns:
        Its text and ``max_tokens``, and whether it must have been committed (None: it may).
    """
    draw = life.draw
    stream = draw.random() < 0.7
    text = life.text(1500, 4000) if stage == "prefill" else life.text(40, 800)
    max_tokens = draw.randint(13, 40)  # never that of a question asked again
    if stage in ("prefill", "answer"):
        max_tokens = UNENDING
    committed: bool | None = False
    with RawRequest(server.url + PATH, life.body(text, max_tokens, stream)) as request:
        request.send(draw.uniform(0.1, 0.95) if stage == "sending" else 1.0)
        if stage == "sent":
            committed = None
        elif stage == "end" and not stream:
            request.read_for(draw.uniform(0.02, 0.3))
            committed = True if request.received else None
        elif stage == "end":
            # near the last token (an event may hold several); the chunk with the finish reason,
            # which follows the commit; the end
            marker, count, committed = draw.choice(
                [
                    (DATA, max_tokens - 3, None),
                    (b'"finish_reason":"', 1, True),
                    (b"[DONE]", 1, True),
                ]
            )
            assert request.read_until(marker, count) or not committed
        elif not stream:
            request.read_for(draw.uniform(0, 0.4))
        elif stage == "prefill":
            assert request.read_until(PREFILL, draw.randint(1, len(text) // CHUNK - 2))
        elif stage == "answer":
            assert request.read_until(DATA, draw.randint(1, 60))
        if life.way == "implicit" and b"x-session-id: " in request.received:
            after = request.received.split(b"x-session-id: ", 1)[1]
            life.session_id = after.split(b"\r\n", 1)[0].decode()
        request.cut(reset=draw.random() < 0.5)
    return text, max_tokens, committed


def ask(raw: httpx.Client, life: Life, text: str) -> Any:
    """An uncut turn of 12 tokens; a session that is still busy is asked again, as clients do."""
    for _ in range(100):
        response = raw.post(PATH, json=life.body(text, 12))
        if response.status_code != 409 or response.headers["x-should-retry"] != "true":
            break
        time.sleep(0.02)
    assert response.status_code == 200, response.text
    answer = response.json()
    life.session_id = answer["pace"]["session_id"]
    said = answer["choices"][0]["message"]["content"]
    life.transcript += [{"role": "user", "content": text}, {"role": "assistant", "content": said}]
    life.committed.append(Asked(text, 12, answer))
    return answer


def assert_same(answer: Any, control: Any) -> None:
    mine, other = answer["choices"][0], control["choices"][0]
    assert mine["token_ids"] == other["token_ids"]
    logprobs = [[entry["logprob"] for entry in c["logprobs"]["content"]] for c in (mine, other)]
    assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-4)
    assert answer["usage"] == control["usage"]
    for name in ("resident_tokens", "evicted", "renumbers"):
        assert answer["pace"][name] == control["pace"][name]


@pytest.mark.parametrize("number", range(scaled(10)))
def test_a_cut_turn_was_never_there(server: Server, emptied: httpx.Client, number: int) -> None:
    draw = random.Random(number)
    way = WAYS[number % len(WAYS)]
    life = Life(way, draw, None if way == "implicit" else f"life-{number}")
    for stage in draw.sample(STAGES, len(STAGES)):
        known = life.session_id
        before = turns(emptied, known)
        text, max_tokens, certain = cut_turn(server, life, stage)
        if way == "implicit" or draw.random() < 0.5:
            settle(emptied)
        elif stage == "sent" or certain is None:
            settle(emptied)  # whether it is committed cannot be known earlier
        if life.session_id != known:
            before = 0  # the cut turn began a session
        committed = False
        if certain is not False:
            committed = turns(emptied, life.session_id) > before
            assert certain is None or committed, f"{stage}: the client had seen the end"
        if committed and way == "append":
            life.committed.append(Asked(text, max_tokens))
        if not committed and not life.transcript:
            life.session_id = life.session_id if way != "implicit" else None
        # A resent transcript without the committed turn replaces it.
        answer = ask(emptied, life, text if draw.random() < 0.5 else life.text(20, 300))
        if life.session_id == known or way != "implicit":
            assert turns(emptied, life.session_id) == before + committed + 1, stage
        assert answer["usage"]["completion_tokens"] == 12
    control = Life("append", draw, f"control-{number}")
    for asked in life.committed:
        body = control.body(asked.text, asked.max_tokens)
        response = emptied.post(PATH, json=body)
        assert response.status_code == 200, response.text
        if asked.answer is not None:
            assert_same(asked.answer, response.json())
