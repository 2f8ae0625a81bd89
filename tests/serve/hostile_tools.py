"""Odd and wrong tools, each with the answer the contract gives it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.serve.hostile import (
    CALL,
    CALLED,
    HI,
    INVALID,
    MISSING,
    RESULT,
    UNKNOWN,
    UNSUPPORTED,
    Case,
    fine,
    refused,
)


def tool(name: Any = "f", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


CITY = schema(city={"type": "string"})
ONE = [tool(parameters=CITY)]
NAMED = {"type": "function", "function": {"name": "f"}}
WITHOUT = {"type": "function", "function": {"parameters": {}}}
NESTED = schema(a={"anyOf": [{"$ref": "#/$defs/x"}, True]}) | {"$defs": {"x": {"const": None}}}


def accepted() -> Iterator[Case]:
    """Odd and right."""
    for fields in (
        {"tools": [tool()]},
        {"tools": [tool(description=None, parameters=None, strict=None)]},
        {"tools": [tool(description="", parameters={}, strict=True)]},
        {"tools": [tool(parameters=schema())]},
        {"tools": [tool(parameters={"properties": {}, "additionalProperties": False})]},
        {"tools": [tool(parameters=NESTED)]},
        {"tools": [tool(description="\u0000 \U0001f600 <|im_end|> {{ x }}")]},
        {"tools": [tool("-"), tool("_"), tool("A" * 64), tool("a" * 64)]},
        {"tools": [tool(f"t{n}") for n in range(128)]},
        {"tools": [{**tool(), "cache_control": {"type": "ephemeral"}}]},
        {"tools": ONE, "tool_choice": None, "parallel_tool_calls": None},
        {"tools": ONE, "tool_choice": "auto", "parallel_tool_calls": True},
        {"tools": ONE, "tool_choice": "none", "parallel_tool_calls": False},
        {"tools": ONE, "tool_choice": "required"},
        {"tools": ONE, "tool_choice": "required", "stream": True},
        {"tools": ONE, "tool_choice": NAMED, "parallel_tool_calls": False},
        {"tools": ONE, "tool_choice": NAMED, "stop": "{", "logprobs": True},
        {"tools": [tool()], "tool_choice": "required", "max_tokens": 1},
        {"tools": ONE, "messages": [HI, CALLED, RESULT]},
        {"tools": ONE, "messages": [HI, {**CALLED, "tool_calls": [CALL] * 20}, RESULT]},
        {"tools": [tool("other")], "messages": [HI, CALLED, RESULT, HI]},
        {"messages": [HI, called("not JSON"), RESULT]},
        {"messages": [HI, called(""), RESULT]},
        {"messages": [HI, called('{"a": 1e999}'), RESULT]},
        {"messages": [HI, called("[" * 5000), RESULT]},
        {"messages": [HI, called("[" * 300 + "]" * 300), RESULT]},
        {"tools": None, "tool_choice": "auto"},
    ):
        yield fine(fields)


def called(arguments: str) -> dict[str, Any]:
    """A call with these arguments."""
    return {**CALLED, "tool_calls": [{**CALL, "function": {"name": "f", "arguments": arguments}}]}


def refusals() -> Iterator[Case]:
    """What is wrong."""
    for tools, param, code in (
        ([None], "tools.0", INVALID),
        (["f"], "tools.0", INVALID),
        ([{}], "tools.0.type", MISSING),
        ([{"type": "function"}], "tools.0.function", MISSING),
        ([{**tool(), "type": "web_search"}], "tools.0.type", INVALID),
        ([{**tool(), "more": 1}], "tools.0.more", UNKNOWN),
        ([{"type": "function", "name": "f"}], "tools.0.function", MISSING),
        ([WITHOUT], "tools.0.function.name", MISSING),
        ([tool(more=1)], "tools.0.function.more", UNKNOWN),
        ([tool(description=5)], "tools.0.function.description", INVALID),
        ([tool(parameters=[])], "tools.0.function.parameters", INVALID),
        ([tool(parameters="{}")], "tools.0.function.parameters", INVALID),
        ([tool(parameters={"type": "string"})], "tools.0.function.parameters", UNSUPPORTED),
        ([tool(parameters={"type": ["object"]})], "tools.0.function.parameters", UNSUPPORTED),
        ([tool(strict="yes")], "tools.0.function.strict", INVALID),
        ([tool(), tool()], "tools.1.function.name", INVALID),
        ([tool("a"), tool("b"), tool("a")], "tools.2.function.name", INVALID),
        ([tool(f"t{n}") for n in range(129)], "tools", INVALID),
    ):
        yield refused({"tools": tools}, param, code)
    for name in ("", "a b", "a.b", "é", "x" * 65, "f\n", 5, None):
        yield refused({"tools": [tool(name)]}, "tools.0.function.name")
    for choice in ("required", NAMED):
        yield refused({"tool_choice": choice}, "tool_choice")
        yield refused({"tool_choice": choice, "tools": []}, "tool_choice")
    for choice, param, code in (
        ("any", "tool_choice", INVALID),
        ("", "tool_choice", INVALID),
        ("f", "tool_choice", INVALID),
        (True, "tool_choice", INVALID),
        (["auto"], "tool_choice", INVALID),
        ({**NAMED, "function": {"name": "g"}}, "tool_choice", INVALID),
        ({}, "tool_choice.type", MISSING),
        ({"type": "function"}, "tool_choice.function", MISSING),
        ({"type": "auto"}, "tool_choice.type", INVALID),
        ({**NAMED, "function": {}}, "tool_choice.function.name", MISSING),
        ({**NAMED, "more": 1}, "tool_choice.more", UNKNOWN),
    ):
        yield refused({"tools": ONE, "tool_choice": choice}, param, code)
    broken = [tool(parameters={"type": "object", "properties": 5})]
    yield refused({"tools": broken, "tool_choice": "required"}, "tools")
