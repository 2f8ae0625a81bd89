"""How a model's chat template shows tools, writes calls and marks reasoning: found by rendering.

No list of models: the template itself is asked, with a tool and a call nobody else would name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from engine.errors import InvalidRequest
from engine.transcript import canonical_calls, canonical_json
from engine.types import Message

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"

Render = Callable[[tuple[Message, ...], str | None, bool], str]
"""Messages, tools, and whether an answer is to be opened → the template's text."""

_NAME, _ARGUMENT = "pace_probe_tool", "pace_probe_argument"
PROBE_TOOLS = canonical_json(
    [
        {
            "type": "function",
            "function": {
                "name": _NAME,
                "description": "d",
                "parameters": {"type": "object", "properties": {_ARGUMENT: {"type": "string"}}},
            },
        }
    ]
)
# nine letters: the only form of id that Mistral's templates take
PROBE_CALL_ID = "paceprobe"
PROBE_CALLS = canonical_calls([(PROBE_CALL_ID, _NAME, json.dumps({_ARGUMENT: "v"}))])
_ASKED = (Message("system", "s"), Message("user", "u"))


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a model writes calls.

    ``tagged``: each call stands in ``<tool_call>`` tags, text may surround it (Hermes, Qwen).
    Otherwise the calls are the whole answer: JSON objects, or a list of them (Llama, Mistral).
    ``opening`` … ``ending``: text around the object of a single call. ``arguments``: its key
    of the arguments.
    """

    tagged: bool
    opening: str
    ending: str
    arguments: Literal["arguments", "parameters"]


def find_tool_format(render: Render, closing: str) -> ToolFormat | None:
    """What the template does with tools; None when it does not show them to the model, or
    writes calls in a form that cannot be read back.

    Args:
        closing: text that ends an answer.
    """
    try:
        prompt = render(_ASKED, PROBE_TOOLS, True)
        answered = (*_ASKED, Message("assistant", "", tool_calls=PROBE_CALLS))
        called = render(answered, PROBE_TOOLS, False)
    except InvalidRequest:
        return None
    if _NAME not in prompt or not called.startswith(prompt):
        return None
    body = called[len(prompt) :]
    start = body.find("{")
    if start < 0 or not body.endswith(closing):
        return None
    try:
        call, end = json.JSONDecoder().raw_decode(body, start)
    except ValueError:
        return None
    keys = [key for key in ("arguments", "parameters") if _holds_argument(call.get(key))]
    if call.get("name") != _NAME or not keys:
        return None
    opening, ending = body[:start], body[end : len(body) - len(closing)]
    return ToolFormat(
        tagged=CALL_OPEN in opening,
        opening=opening,
        ending=ending,
        arguments="parameters" if keys[0] == "parameters" else "arguments",
    )


def thinks(template: str) -> bool:
    """Whether a model with this chat template marks its reasoning with ``<think>`` tags."""
    return THINK_OPEN in template or THINK_CLOSE in template


def _holds_argument(value: object) -> bool:
    return isinstance(value, dict) and _ARGUMENT in value
