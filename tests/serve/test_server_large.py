"""A long transcript, resent whole to the real engine: only what is new is computed.

By default 60,000 tokens (``PACE_SCALE``); that 12 MB pass through HTTP and Ray, at what cost and
in how much memory, is tested with a fake engine in test_deployment.py.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.support.scale import VARIABLE, scaled

# Starting the shared server counts to the first test; a soak computes millions of tokens.
pytestmark = pytest.mark.timeout(240 + scaled(15))

BYTES = 3000
MESSAGES = scaled(20)


def ask(raw: httpx.Client, messages: list[Any], append: bool = False) -> Any:
    body = {
        "model": "default",
        "messages": messages,
        "max_tokens": 12,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": True,
        "pace": {"session_id": "long", "mode": "append" if append else "transcript"},
    }
    answer = raw.post("/v1/chat/completions", json=body, timeout=600)
    assert answer.status_code == 200, answer.text
    return answer.json()


def said(answer: Any) -> tuple[str, list[float]]:
    choice = answer["choices"][0]
    return choice["message"]["content"], [e["logprob"] for e in choice["logprobs"]["content"]]


def test_a_long_transcript_resent(raw: httpx.Client) -> None:
    transcript: list[dict[str, str]] = []
    held = 0
    for begin in range(0, MESSAGES, 5):
        new = [
            {"role": "user", "content": (f"{n} of many: " + "lorem ipsum " * BYTES)[:BYTES]}
            for n in range(begin, min(begin + 5, MESSAGES))
        ]
        answer = ask(raw, new, append=True)
        transcript += [*new, {"role": "assistant", "content": said(answer)[0]}]
        held = answer["usage"]["total_tokens"]
    assert held > MESSAGES * BYTES, VARIABLE
    transcript.append({"role": "user", "content": "And now?"})
    first, again = ask(raw, transcript), ask(raw, transcript)
    for answer in (first, again):  # the second goes on from before the first
        # all but the last sampled token has been computed
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == held - 1
        assert answer["usage"]["prompt_tokens"] < held + 100
        assert answer["pace"]["resident_tokens"] < 1000
    assert said(first)[0] == said(again)[0]
    assert said(first)[1] == pytest.approx(said(again)[1], abs=1e-4)
    assert raw.delete("/v1/sessions/long").status_code == 200
