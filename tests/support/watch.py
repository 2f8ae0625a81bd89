"""What a client's session computed, told from what the client sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.local_server import LocalServer
from tests.support.transcript import CALL, CALL_END, CLOSING, Drawn, encode, token_log


@dataclass(frozen=True)
class Turn:
    """A turn's request, and how many tokens of its prompt were computed, and how many not."""

    body: dict[str, Any]
    computed: int
    reused: int


def check_session(server: LocalServer) -> list[Turn]:
    """Check that the exchanges since the last call are turns of one session that resends its
    transcript: whatever passed the embedding was new, and nothing new was left out.

    Of each turn first comes the last token of the turn before, and what closes its answer; then
    the new messages. What the client sends back of an answer is what was drawn.
    """
    tokenizer = server.tokenizer
    drawn: dict[int, Drawn] = {}
    written = 0
    turns = []
    for exchange in server.exchanges.take():
        messages = [_plain(message) for message in exchange.body["messages"]]
        if drawn:
            place = max(drawn)
            drawn[place].ids.append(exchange.passed[0])
            _check_sent_back(tokenizer, drawn[place], messages[place])
        log = token_log(tokenizer, messages, drawn, tools=_shown(exchange.body.get("tools")))
        forced = exchange.body.get("tool_choice") not in (None, "auto", "none")
        if forced:
            log += encode(tokenizer, CALL)
        prefilled = len(log) - written
        assert exchange.passed[:prefilled] == log[written:]
        turns.append(Turn(exchange.body, prefilled, written))
        decoded = exchange.passed[prefilled:]
        assert len(decoded) < _limit(exchange.body)
        drawn[len(messages)] = Drawn(decoded, CALL, CALL_END) if forced else Drawn(decoded)
        written = len(log) + len(decoded)
    return turns


def _limit(body: Mapping[str, Any]) -> int:
    limit: int = body.get("max_completion_tokens") or body["max_tokens"]
    return limit


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with its text as a string."""
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(part["text"] for part in content)
    return {**message, "content": content}


def _shown(tools: Any) -> Any:
    """Tools as the model sees them: name, description and parameters, in this order."""
    keys = ("name", "description", "parameters")
    functions = [tool["function"] for tool in tools or ()]
    plain = [{key: item[key] for key in keys if key in item} for item in functions]
    return [{"type": "function", "function": item} for item in plain] or None


def _check_sent_back(tokenizer: Any, drawn: Drawn, message: Mapping[str, Any]) -> None:
    ended = drawn.ids[-1] == tokenizer.convert_tokens_to_ids(CLOSING)
    said = tokenizer.decode(drawn.ids[: len(drawn.ids) - ended], skip_special_tokens=True)
    assert message["role"] == "assistant"
    if not drawn.opening:
        assert message["content"] == said
        return
    (call,) = message["tool_calls"]
    function = call["function"]
    assert json.loads(said) == {
        "name": function["name"],
        "arguments": json.loads(function["arguments"]),
    }
