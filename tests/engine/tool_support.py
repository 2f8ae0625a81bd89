"""Tools, an engine that calls them, and what a client gets of its answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from engine.engine import KVEngine
from engine.runner import ModelRunner
from engine.types import Message, Sampling, TextDelta, ToolUse, TurnDone, TurnEvent, TurnRequest
from tests.engine.support import build_engine, policy_config
from tests.reference.retention import Rules
from tests.support.protocol_model import byte_tokenizer

FULL = {"test": policy_config(Rules("none", 1700, 0, 0, 1, 256, 2048))}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather somewhere.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Oslo", "Lima"]},
                "when": {"$ref": "#/$defs/day"},
            },
            "required": ["city", "when"],
            "additionalProperties": False,
            "$defs": {"day": {"enum": ["today", "tomorrow"]}},
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {
        "name": "clock",
        "parameters": {
            "type": "object",
            "properties": {"utc": {"type": "boolean"}},
            "required": ["utc"],
            "additionalProperties": False,
        },
    },
}
TOOLS = json.dumps([WEATHER, CLOCK])
AUTO = ToolUse(TOOLS)
ASKED = (Message("system", "Help."), Message("user", "Weather in Oslo?"))
CALL = '{"name": "weather", "arguments": {"when": "today", "city": "Oslo"}}'
END = 258
Script = Callable[[str], None]


def ask(engine: KVEngine, messages: tuple[Message, ...], **fields: Any) -> list[TurnEvent]:
    sampling = fields.pop("sampling", Sampling(max_tokens=200, temperature=0))
    session = fields.pop("session", "s")
    return engine.run(TurnRequest(session, messages, sampling=sampling, **fields))


def answer(events: list[TurnEvent]) -> tuple[str, str, list[dict[str, str]], TurnDone]:
    """Content, reasoning, calls and the last event, as a client puts them together."""
    deltas = [event for event in events if isinstance(event, TextDelta)]
    calls: list[dict[str, str]] = []
    for piece in [piece for delta in deltas for piece in delta.tool_calls]:
        if piece.call_id is not None:
            calls.append({"id": piece.call_id, "name": piece.name or "", "arguments": ""})
        calls[piece.index]["arguments"] += piece.arguments
    done = events[-1]
    assert isinstance(done, TurnDone)
    content = "".join(delta.text for delta in deltas)
    return content, "".join(delta.reasoning for delta in deltas), calls, done


def rendered(messages: list[dict[str, Any]], prompt: bool, tools: Any = None) -> list[int]:
    """The whole transcript by the tokenizer alone."""
    tokenizer = byte_tokenizer()
    text = tokenizer.apply_chat_template(
        messages, tools=tools or [WEATHER, CLOCK], tokenize=False, add_generation_prompt=prompt
    )
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def engine_with(runner: ModelRunner, template: str) -> KVEngine:
    """An engine whose tokenizer has another chat template."""
    engine = build_engine(runner, FULL)
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    engine.chat = type(engine.chat)(tokenizer, frozenset({END}))
    return engine
