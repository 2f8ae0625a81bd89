"""Turn events as OpenAI's JSON: one completion, or a stream of chunks.

``pace`` (what the turn did to the cache) is in every answer: beside ``usage`` in a whole
completion; in a stream on the usage chunk when the client asked for usage, else on the chunk
with the finish reason, so that it is never lost.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from engine.types import TextDelta, TokenLogprob, ToolCallDelta, TopLogprob, TurnDone
from serve.wire.chat import ChatCall

SSE_DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What all parts of one answer share. ``created`` is in seconds since 1970."""

    id: str
    created: int
    model: str
    fingerprint: str
    replica: str


def sse(value: object) -> bytes:
    """One server-sent event. JSON escapes line breaks, so one ``data:`` line holds it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode()


def sse_comment(text: str) -> bytes:
    """A line that clients skip; it shows progress and keeps the connection alive."""
    return f": {text}\n\n".encode()


def usage_json(done: TurnDone) -> dict[str, Any]:
    """Token counts; no field is ever null."""
    usage = done.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def pace_json(head: AnswerHead, done: TurnDone) -> dict[str, Any]:
    """The answer's ``pace`` object."""
    info = asdict(done.pace)
    info["unresolved"] = list(info["unresolved"])
    return {**info, "replica": head.replica}


def logprobs_json(tokens: Iterable[TokenLogprob]) -> dict[str, Any]:
    """OpenAI's ``logprobs`` object for a run of tokens."""
    return {
        "content": [
            {**_token_json(token), "top_logprobs": [_token_json(top) for top in token.top]}
            for token in tokens
        ],
        "refusal": None,
    }


def _token_json(token: TokenLogprob | TopLogprob) -> dict[str, Any]:
    return {"token": token.token, "logprob": token.logprob, "bytes": list(token.bytes)}


class Completion:
    """Collects the events of a turn into one ``chat.completion``."""

    def __init__(self, head: AnswerHead, call: ChatCall) -> None:
        self._head = head
        self._call = call
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []

    def add(self, delta: TextDelta) -> None:
        """Take the next piece of the answer."""
        self._texts.append(delta.text)
        self._reasoning.append(delta.reasoning)
        for piece in delta.tool_calls:
            if piece.call_id is not None:
                function = {"name": piece.name, "arguments": ""}
                call = {"id": piece.call_id, "type": "function", "function": function}
                self._calls.append(call)
            self._calls[piece.index]["function"]["arguments"] += piece.arguments
        self._token_ids.extend(delta.token_ids)
        self._logprobs.extend(delta.logprobs)

    def finish(self, done: TurnDone) -> dict[str, Any]:
        """The whole answer."""
        choice: dict[str, Any] = {
            "index": 0,
            "message": self._message(),
            "logprobs": logprobs_json(self._logprobs) if self._call.sampling.logprobs else None,
            "finish_reason": done.finish_reason,
        }
        if self._call.return_token_ids:
            choice["token_ids"] = self._token_ids
        return {
            "id": self._head.id,
            "object": "chat.completion",
            "created": self._head.created,
            "model": self._head.model,
            "system_fingerprint": self._head.fingerprint,
            "choices": [choice],
            "usage": usage_json(done),
            "pace": pace_json(self._head, done),
        }

    def _message(self) -> dict[str, Any]:
        content = "".join(self._texts)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if self._calls and not content else content,
            "refusal": None,
        }
        if reasoning := "".join(self._reasoning):
            message["reasoning_content"] = reasoning
        if self._calls:
            message["tool_calls"] = self._calls
        return message


class ChunkStream:
    """Turns the events of a turn into ``chat.completion.chunk`` events.

    The first chunk, which carries the role, goes out with the first token: a client that
    times it measures the model, not the admission.
    """

    def __init__(self, head: AnswerHead, call: ChatCall) -> None:
        self._head = head
        self._call = call
        self._started = False

    def delta(self, delta: TextDelta) -> bytes:
        """Events for a piece of the answer; empty when it holds nothing for this client."""
        wants_tokens = self._call.return_token_ids or self._call.sampling.logprobs
        parts = _delta_json(delta)
        if not parts and not (wants_tokens and delta.token_ids):
            return self._opening()
        choice = self._choice(parts or {"content": ""})
        if self._call.sampling.logprobs:
            choice["logprobs"] = logprobs_json(delta.logprobs)
        if self._call.return_token_ids:
            choice["token_ids"] = list(delta.token_ids)
        return self._opening() + self._chunk([choice])

    def finish(self, done: TurnDone) -> bytes:
        """The chunk with the finish reason, the usage chunk when asked for, and ``[DONE]``."""
        last = self._choice({}, done.finish_reason)
        pace = pace_json(self._head, done)
        if self._call.include_usage:
            end = self._chunk([last]) + self._chunk([], usage=usage_json(done), pace=pace)
        else:
            end = self._chunk([last], pace=pace)
        return self._opening() + end + SSE_DONE

    def _opening(self) -> bytes:
        if self._started:
            return b""
        self._started = True
        return self._chunk([self._choice({"role": "assistant", "content": ""})])

    def _choice(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}

    def _chunk(self, choices: list[dict[str, Any]], **extra: Any) -> bytes:
        return sse(
            {
                "id": self._head.id,
                "object": "chat.completion.chunk",
                "created": self._head.created,
                "model": self._head.model,
                "system_fingerprint": self._head.fingerprint,
                "choices": choices,
                **extra,
            }
        )


def _delta_json(delta: TextDelta) -> dict[str, Any]:
    """What is new in an answer, as a chunk's ``delta``."""
    parts: dict[str, Any] = {}
    if delta.reasoning:
        parts["reasoning_content"] = delta.reasoning
    if delta.text:
        parts["content"] = delta.text
    if delta.tool_calls:
        parts["tool_calls"] = [_call_json(piece) for piece in delta.tool_calls]
    return parts


def _call_json(piece: ToolCallDelta) -> dict[str, Any]:
    if piece.call_id is None:
        return {"index": piece.index, "function": {"arguments": piece.arguments}}
    function = {"name": piece.name, "arguments": piece.arguments}
    return {"index": piece.index, "id": piece.call_id, "type": "function", "function": function}
