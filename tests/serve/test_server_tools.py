"""Tools over a real server, asked with OpenAI's own client library."""

from __future__ import annotations

import json
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from openai import OpenAI

from tests.serve.test_server_chat import MODEL, chat, fresh

pytestmark = pytest.mark.timeout(240)

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Lima"]}, "days": {"enum": [1, 2, 3]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "forecast", "parameters": PARAMETERS}}
OTHER = {"type": "function", "function": {"name": "now"}}
NAMED = {"type": "function", "function": {"name": "forecast"}}
ASK = [{"role": "user", "content": "Rain?"}]


def forced(client: OpenAI, messages: list[Any], **fields: Any) -> Any:
    """A call of the forecast; the model is random, its call is not."""
    settings = {"tools": [TOOL, OTHER], "tool_choice": NAMED, "max_tokens": 100} | fields
    return chat(client, messages, **settings)


def reused(usage: Any) -> int:
    """Prompt tokens that were computed."""
    count: int = usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens
    return count


def test_a_call_its_result_and_an_answer(client: OpenAI) -> None:
    pace = fresh()
    other = forced(client, ASK, pace=pace).choices[0].message.tool_calls[0]
    first = forced(client, ASK, pace=pace)  # the same request is the same turn once more
    (choice,) = first.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    (call,) = choice.message.tool_calls
    assert (call.type, call.function.name) == ("function", "forecast")
    assert call.id != other.id
    arguments = json.loads(call.function.arguments)
    jsonschema.validate(arguments, PARAMETERS)
    # clients parse the arguments and write them again
    again = {"id": call.id, "type": "function", "function": {"name": "forecast"}}
    again["function"]["arguments"] = json.dumps(dict(reversed(arguments.items())), indent=1)
    history = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [again]},
        {"role": "tool", "tool_call_id": call.id, "content": "Rain."},
    ]
    second = chat(client, history, tools=[TOOL, OTHER], pace=pace)
    assert second.choices[0].finish_reason in ("length", "stop")
    # the last token of the arguments, the tags that close the call, and the result
    new = len("}</tool_call>\n") - len("</tool_call>") + 2 + len("tool\nRain.\nassistant\n") + 3
    assert reused(second.usage) == new
    # the result again: the answer is drawn once more, from behind the call
    third = chat(client, history, tools=[TOOL, OTHER], pace=pace)
    assert third.usage == second.usage


def test_a_streamed_call(client: OpenAI) -> None:
    pace = fresh()
    whole = forced(client, ASK, pace=pace).choices[0].message.tool_calls[0].function
    chunks = list(forced(client, ASK, pace=fresh(), stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    pieces = [piece for delta in deltas for piece in delta.tool_calls or ()]
    assert pieces[0].id and pieces[0].type == "function"
    assert pieces[0].function.name == whole.name
    assert all(piece.index == 0 for piece in pieces)
    assert all(piece.id is None and piece.function.name is None for piece in pieces[1:])
    assert len(pieces) > 3  # as they come, not at the end
    assert "".join(piece.function.arguments for piece in pieces) == whole.arguments
    assert not any(delta.content for delta in deltas)
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "tool_calls"


def test_the_same_tools_in_another_order_of_keys_are_the_same_session(client: OpenAI) -> None:
    """Without a session key."""
    ask = [{"role": "user", "content": "The same tools?"}]
    first = chat(client, ask, tools=[TOOL])
    answer = {"role": "assistant", "content": first.choices[0].message.content}
    turned = json.loads(json.dumps(TOOL, sort_keys=True))
    turned["function"]["parameters"] = dict(reversed(turned["function"]["parameters"].items()))
    more = [*ask, answer, {"role": "user", "content": "and?"}]
    second = chat(client, more, tools=[turned])
    assert second.pace["session_id"] == first.pace["session_id"]
    assert second.usage.prompt_tokens_details.cached_tokens > 0
    third = chat(client, [*more, answer, ask[0]], tools=[OTHER])
    assert third.pace["session_id"] != first.pace["session_id"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "required without tools": ({"tool_choice": "required"}, "tool_choice"),
    "named without tools": ({"tool_choice": NAMED}, "tool_choice"),
    "an unknown name": ({"tools": [OTHER], "tool_choice": NAMED}, "tool_choice"),
    "no such choice": ({"tools": [TOOL], "tool_choice": "often"}, "tool_choice"),
    "two of one name": ({"tools": [TOOL, TOOL]}, "tools.1.function.name"),
    "no name": ({"tools": [{"type": "function", "function": {}}]}, "tools.0.function.name"),
    "a name with a space": (
        {"tools": [{"type": "function", "function": {"name": "a b"}}]},
        "tools.0.function.name",
    ),
    "a name with a line break": (
        {"tools": [{"type": "function", "function": {"name": "a\n"}}]},
        "tools.0.function.name",
    ),
    "another type": ({"tools": [{**TOOL, "type": "retrieval"}]}, "tools.0.type"),
    "parameters of another type": (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
        "tools.0.function.parameters",
    ),
    "too many": (
        {"tools": [{"type": "function", "function": {"name": f"f{n}"}} for n in range(129)]},
        "tools",
    ),
    "a schema nobody can force": (
        {
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": "f",
                        "parameters": {"type": "object", "properties": {"x": {"type": "no"}}},
                    },
                }
            ],
            "tool_choice": "required",
        },
        "tools",
    ),
    "another session's tools": ({"tools": [OTHER]}, "tools"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_field(client: OpenAI, name: str) -> None:
    fields, param = REFUSED[name]
    pace = fresh()
    kind: type[openai.APIStatusError] = openai.BadRequestError
    if name == "another session's tools":
        chat(client, ASK, tools=[TOOL], pace=pace)
        kind = openai.ConflictError
    with pytest.raises(kind) as caught:
        chat(client, ASK, pace=pace, **fields)
    assert caught.value.param == param


def test_neutral_tool_fields(raw: httpx.Client) -> None:
    for fields in (
        {"tools": []},
        {"tools": None, "tool_choice": "auto"},
        {"tool_choice": "none", "parallel_tool_calls": False},
        {"tools": [TOOL], "tool_choice": "none"},
    ):
        body = {"model": MODEL, "messages": ASK, "max_tokens": 2, **fields}
        assert raw.post("/v1/chat/completions", json=body).status_code == 200, fields
