"""Chat completions of a real server, asked with OpenAI's own client library."""

from __future__ import annotations

import json
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tests.serve.conftest import BODY_BYTES
from tests.support.server import Server

# Starting the shared server counts to the first test; busy machines need a while for it.
pytestmark = pytest.mark.timeout(240)

MODEL = "protocol"
CHUNK = 64
ASK = [{"role": "user", "content": "Say something."}]


def chat(client: OpenAI, messages: list[Any] | None = None, **fields: Any) -> Any:
    """A greedy answer of 12 tokens unless ``fields`` say otherwise; ``pace`` goes along."""
    settings: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "model": MODEL} | fields
    if "pace" in settings:
        extra = settings.get("extra_body", {}) | {"pace": settings.pop("pace")}
        settings["extra_body"] = extra
    return client.chat.completions.create(messages=messages or ASK, **settings)


def fresh() -> dict[str, str]:
    """A session nobody has used."""
    return {"session_id": f"t-{uuid.uuid4().hex}"}


def endless(client: OpenAI, pace: dict[str, Any]) -> Any:
    """A stream that goes on until it is left."""
    extra = {"ignore_eos": True}
    return chat(client, stream=True, max_tokens=1_000_000, extra_body=extra, pace=pace)


def test_an_answer(client: OpenAI) -> None:
    answer = chat(client, pace=fresh())
    choice = answer.choices[0]
    assert answer.id.startswith("chatcmpl-") and answer.model == MODEL
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "length", None)
    assert choice.message.role == "assistant"
    assert choice.message.content
    usage = answer.usage
    # ChatML around the text, and the opening of the answer: one byte, one token.
    assert usage.prompt_tokens == len("user\nSay something.\nassistant\n") + 3
    assert usage.completion_tokens == 12
    assert usage.total_tokens == usage.prompt_tokens + 12
    assert usage.prompt_tokens_details.cached_tokens == 0
    assert usage.completion_tokens_details.reasoning_tokens == 0
    assert answer.pace["resident_tokens"] == usage.total_tokens - 1
    assert answer.pace["step"] == 1
    assert answer.pace["replica"]


def test_seeds(client: OpenAI) -> None:
    def text(seed: int) -> str:
        answer = chat(client, temperature=1.5, seed=seed, max_tokens=24, pace=fresh())
        return str(answer.choices[0].message.content)

    assert text(7) == text(7)
    assert text(7) != text(8)


def test_a_stream_says_what_the_whole_answer_says(client: OpenAI) -> None:
    whole = chat(client, pace=fresh())
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}, pace=fresh()))
    *deltas, last, usage = chunks
    assert deltas[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in deltas)
    assert text == whole.choices[0].message.content
    assert last.choices[0].finish_reason == "length"
    assert usage.choices == []
    assert usage.usage == whole.usage
    assert usage.pace["step"] == 1
    assert [chunk.usage for chunk in (*deltas, last)] == [None] * (len(deltas) + 1)


def test_stop_strings(client: OpenAI) -> None:
    text = str(chat(client, max_tokens=40, pace=fresh()).choices[0].message.content)
    stop = text[10:13]
    expected = text[: text.index(stop)]
    answer = chat(client, max_tokens=40, stop=["never said", stop], pace=fresh())
    assert answer.choices[0].message.content == expected
    assert answer.choices[0].finish_reason == "stop"
    streamed = chat(client, max_tokens=40, stop=stop, stream=True, pace=fresh())
    pieces = [c.choices[0].delta.content or "" for c in streamed]
    assert "".join(pieces) == expected


def test_logprobs_and_token_ids(client: OpenAI) -> None:
    pace = {**fresh(), "return_token_ids": True}
    answer = chat(client, logprobs=True, top_logprobs=3, pace=pace)
    choice = answer.choices[0]
    content = choice.logprobs.content
    assert len(content) == len(choice.token_ids) == answer.usage.completion_tokens
    for entry in content:
        assert entry.logprob <= 0
        assert len(entry.top_logprobs) == 3
        ordered = [top.logprob for top in entry.top_logprobs]
        assert ordered == sorted(ordered, reverse=True)
        # Greedy: the most likely token is the one said.
        assert entry.top_logprobs[0].bytes == entry.bytes
        assert entry.top_logprobs[0].logprob == pytest.approx(entry.logprob)
    said = b"".join(bytes(entry.bytes) for entry in content)
    assert said.decode(errors="replace") == choice.message.content
    streamed = list(chat(client, logprobs=True, stream=True, pace={**pace, **fresh()}))
    parts = [c.choices[0] for c in streamed]
    assert [i for p in parts for i in getattr(p, "token_ids", [])] == choice.token_ids
    spoken = [e.logprob for p in parts if p.logprobs for e in p.logprobs.content]
    assert spoken == pytest.approx([entry.logprob for entry in content], abs=1e-5)


def test_ignore_eos_is_accepted(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="default", messages=ASK, max_completion_tokens=5, extra_body={"ignore_eos": True}
    )
    assert answer.usage is not None and answer.usage.completion_tokens == 5


def test_models(client: OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == MODEL
    assert client.models.retrieve(MODEL).max_model_len == 10_000_000  # type: ignore[attr-defined]
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


@pytest.mark.parametrize(
    ("fields", "kind", "param", "code"),
    [
        ({"n": 2}, openai.BadRequestError, "n", "unsupported_value"),
        ({"temperature": 3}, openai.BadRequestError, "temperature", "invalid_value"),
        ({"stop": ["a"] * 5}, openai.BadRequestError, "stop", "invalid_value"),
        ({"extra_body": {"foo": 1}}, openai.BadRequestError, "foo", "unknown_parameter"),
        ({"pace": {"policy": "none-such"}}, openai.BadRequestError, "pace.policy", None),
        ({"model": "gpt-4"}, openai.NotFoundError, "model", "model_not_found"),
        (
            {"messages": [*ASK, {"role": "user", "content": [{"type": "image_url"}]}]},
            openai.BadRequestError,
            "messages.1.content",
            "unsupported_value",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors(
    client: OpenAI,
    fields: dict[str, Any],
    kind: type[openai.APIStatusError],
    param: str,
    code: str | None,
    stream: bool,
) -> None:
    with pytest.raises(kind) as caught:
        chat(client, stream=stream, **fields)
    error = caught.value
    assert (error.param, error.type) == (param, "invalid_request_error")
    assert code is None or error.code == code
    assert isinstance(error.body, dict) and error.body["message"]


def test_a_session_that_would_outgrow_its_policy(client: OpenAI) -> None:
    long = [{"role": "user", "content": "x" * 9_000}]
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, long, pace={"policy": "full"})
    assert caught.value.code == "context_length_exceeded"
    assert "maximum context length is" in str(caught.value)


def test_a_request_of_several_megabytes_reaches_the_engine(raw: httpx.Client) -> None:
    # Serve's replicas accept 4 MB from each other by default.
    long = [{"role": "user", "content": "x" * 6_000_000}]
    body = {"messages": long, "continuations": ["x"]}
    response = raw.post("/v1/sessions/none-such/score", json=body)
    assert response.json()["error"]["code"] == "session_not_found"


def test_raw_protocol_errors(raw: httpx.Client) -> None:
    def error(response: httpx.Response, status: int) -> str:
        assert response.status_code == status
        assert list(response.json()["error"]) == ["message", "type", "param", "code"]
        return str(response.json()["error"]["code"])

    path = "/v1/chat/completions"
    assert error(raw.post(path, content=b"{"), 400) == "invalid_json"
    assert error(raw.get(path), 405) == "method_not_allowed"
    assert error(raw.get("/v2"), 404) == "not_found"
    too_large = b" " * (BODY_BYTES + 1)
    assert error(raw.post(path, content=too_large), 413) == "request_too_large"


def test_the_stream_on_the_wire(raw: httpx.Client) -> None:
    text = "x" * 100
    body = {
        "model": MODEL,
        "stream": True,
        "max_tokens": 3,
        "ignore_eos": True,  # one sampled token in 256 is the end token
        "messages": [{"role": "user", "content": text}],
        "pace": fresh(),
    }
    headers = {"X-Request-Id": "my-request"}
    response = raw.post("/v1/chat/completions", json=body, headers=headers)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers.get_list("x-request-id") == ["my-request"]
    assert response.headers["x-session-id"] == body["pace"]["session_id"]  # type: ignore[index]
    lines = [line for line in response.text.split("\n") if line]
    total = 100 + len("user\n\nassistant\n") + 3
    assert lines[:2] == [f": prefill {CHUNK}/{total}", f": prefill {total}/{total}"]
    assert lines[-1] == "data: [DONE]"
    last = json.loads(lines[-2].removeprefix("data: "))
    assert last["choices"][0]["finish_reason"] == "length"
    assert last["pace"]["session_id"] == body["pace"]["session_id"]  # type: ignore[index]


def test_many_streams_at_once(client: OpenAI) -> None:
    def one(number: int) -> tuple[str, str]:
        messages = [{"role": "user", "content": f"Question number {number}"}]
        alone = {"max_tokens": 30, "seed": number, "temperature": 0.8}
        chunks = chat(client, messages, stream=True, pace=fresh(), **alone)
        streamed = "".join(c.choices[0].delta.content or "" for c in chunks)
        return streamed, str(number)

    with ThreadPoolExecutor(8) as pool:
        together = dict(pool.map(one, range(8)))
    assert len(together) == 8
    first = one(0)[0]
    assert together[first] == "0"


def when_idle(raw: httpx.Client, session: dict[str, str]) -> dict[str, Any]:
    """The session's summary once nothing runs in it."""
    end = time.monotonic() + 10
    while True:
        about: dict[str, Any] = raw.get(f"/v1/sessions/{session['session_id']}").json()
        if about["status"] == "idle":
            return about
        assert time.monotonic() < end, "the turn goes on without its client"
        time.sleep(0.05)


def test_a_client_that_leaves_cancels_its_turn(client: OpenAI, raw: httpx.Client) -> None:
    session = fresh()
    kept = chat(client, pace=session)
    before = raw.get(f"/v1/sessions/{session['session_id']}").json()
    append = {**session, "mode": "append"}
    stream = endless(client, append)
    seen = [next(stream) for _ in range(5)]
    assert raw.get(f"/v1/sessions/{session['session_id']}").json()["status"] == "running"
    stream.close()
    assert len(seen) == 5
    now = when_idle(raw, session)
    assert (now["turns"], now["tokens"]) == (before["turns"], before["tokens"])
    impatient = client.with_options(timeout=1)
    with pytest.raises(openai.APITimeoutError):
        chat(impatient, max_tokens=1_000_000, extra_body={"ignore_eos": True}, pace=append)
    now = when_idle(raw, session)
    assert (now["turns"], now["tokens"]) == (before["turns"], before["tokens"])
    again = chat(client, pace=append)
    assert again.usage.prompt_tokens_details.cached_tokens >= kept.usage.prompt_tokens


def test_one_line_per_turn_and_no_text_in_the_log(server: Server, client: OpenAI) -> None:
    marker = f"marker{uuid.uuid4().hex}"
    answer = chat(client, [{"role": "user", "content": marker}], pace=fresh())

    def lines() -> list[str]:
        return [line for line in server.stderr.splitlines() if answer.pace["session_id"] in line]

    end = time.monotonic() + 10
    while not lines():
        assert time.monotonic() < end, "the turn was not logged"
        time.sleep(0.05)
    (line,) = lines()
    assert "completion=12" in line and "total_ms=" in line
    assert marker not in server.stderr
    assert str(answer.choices[0].message.content) not in server.stderr
