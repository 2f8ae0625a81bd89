"""Calls that are required: always an object of the tool's schema, or no call at all."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from engine.engine import KVEngine
from engine.errors import InvalidRequest
from engine.runner import ModelRunner
from engine.types import Message, Sampling, ToolUse
from tests.engine.conftest import MakeEngine
from tests.engine.support import state_of
from tests.engine.tool_support import (
    ASKED,
    AUTO,
    CLOCK,
    FULL,
    TOOLS,
    WEATHER,
    answer,
    ask,
)
from tests.support.protocol_model import byte_tokenizer


@pytest.fixture
def engine(tiny: ModelRunner, make_engine: MakeEngine) -> KVEngine:
    return make_engine(tiny, FULL)


@pytest.mark.parametrize("name", [None, "clock", "weather"])
@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_a_required_call_follows_the_schema(
    engine: KVEngine, name: str | None, temperature: float
) -> None:
    """The random model would never call by itself; its arguments are valid all the same."""
    tools = ToolUse(TOOLS, "required", name)
    schemas = {t["function"]["name"]: t["function"]["parameters"] for t in (WEATHER, CLOCK)}
    for seed in range(4):
        session = f"{name}-{temperature}-{seed}"
        sampling = Sampling(max_tokens=200, temperature=temperature, seed=seed)
        events = ask(engine, ASKED, session=session, tools=tools, sampling=sampling)
        content, _, (call,), done = answer(events)
        assert content == "" and done.finish_reason == "tool_calls"
        assert call["name"] in ({name} if name else schemas)
        jsonschema.validate(json.loads(call["arguments"]), schemas[call["name"]])
        # the log is what the template makes of the transcript with this call
        text = byte_tokenizer().decode(list(state_of(engine, session).tokens))
        ended = text.rsplit("assistant\n", 1)[1]
        assert ended.startswith("<tool_call>{") and ended.endswith("}</tool_call><|im_end|>\n")


def test_a_required_call_can_be_cut_off_by_its_length(engine: KVEngine) -> None:
    tools = ToolUse(TOOLS, "required", "clock")
    sampling = Sampling(max_tokens=38, temperature=0)
    _, _, (call,), done = answer(ask(engine, ASKED, tools=tools, sampling=sampling))
    assert done.finish_reason == "length" and call["name"] == "clock"
    with pytest.raises(ValueError):
        json.loads(call["arguments"])
    # and the session goes on
    sent = Message("user", "Go on.")
    assert answer(ask(engine, (sent,), known=3, tools=AUTO))[3].usage.cached_tokens > 0


def tool_with(parameters: dict[str, Any]) -> ToolUse:
    """A required call of a tool with these parameters."""
    function = {"name": "f", "parameters": parameters}
    return ToolUse(json.dumps([{"type": "function", "function": function}]), "required")


@pytest.mark.parametrize(
    "parameters",
    [
        # x is a, a is b, b is a
        {
            "properties": {"x": {"$ref": "#/$defs/a"}},
            "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        },
        # an object that holds an object like itself
        {"properties": {"x": {"$ref": "#"}}},
    ],
)
def test_a_schema_nothing_satisfies_fails_its_turn(
    parameters: dict[str, Any], engine: KVEngine
) -> None:
    """Found only while the call is written; never given out as a call that ends in the middle."""
    schema = {"type": "object", "required": ["x"], **parameters}
    with pytest.raises(InvalidRequest, match="cannot be forced") as caught:
        ask(engine, ASKED, tools=tool_with(schema))
    assert caught.value.param == "tools"
    assert len(caught.value.message.splitlines()) == 1  # none of the grammar's state
    assert engine.sessions(None) == []


@pytest.mark.parametrize("seed", [6, 7])
@pytest.mark.parametrize("parameters", [{}, {"properties": {"x": {"enum": ["a", "b"]}}}])
def test_required_arguments_are_an_object_whatever_the_schema_says(
    parameters: dict[str, Any], seed: int, engine: KVEngine
) -> None:
    free = parameters | {"additionalProperties": False} if parameters else {}
    sampling = Sampling(max_tokens=200, temperature=1.0, seed=seed)
    _, _, (call,), done = answer(ask(engine, ASKED, tools=tool_with(free), sampling=sampling))
    assert done.finish_reason == "tool_calls"
    assert json.loads(call["arguments"]) in ({}, {"x": "a"}, {"x": "b"})


def test_a_schema_that_cannot_be_enforced_is_refused(engine: KVEngine) -> None:
    broken = {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "no"}}}}
    definitions = json.dumps([{"type": "function", "function": broken}])
    with pytest.raises(InvalidRequest, match="cannot be forced") as caught:
        ask(engine, ASKED, tools=ToolUse(definitions, "required"))
    assert caught.value.param == "tools"
    assert engine.sessions(None) == []
