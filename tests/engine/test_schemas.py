"""Schemas of required calls that are odd, huge, or would take for ever."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from engine.chat_formats import ToolFormat
from engine.errors import EngineFailure, InvalidRequest
from engine.forced_call import CallGrammars, ForcedCall
from engine.schema_check import SchemaCheck
from engine.types import ToolUse
from tests.support.protocol_model import byte_tokenizer

FORM = ToolFormat(tagged=True, opening="<tool_call>", ending="</tool_call>", arguments="arguments")
Schema = dict[str, Any]


def required(parameters: Schema) -> ToolUse:
    function = {"name": "f", "parameters": {"type": "object", **parameters}}
    return ToolUse(json.dumps([{"type": "function", "function": function}]), "required")


def only(**properties: Any) -> Schema:
    """All of these, and no others."""
    return {"properties": properties, "required": [*properties], "additionalProperties": False}


def grammars(seconds: int = 3) -> CallGrammars:
    tokenizer = byte_tokenizer()
    return CallGrammars(tokenizer, len(tokenizer), SchemaCheck(seconds))


def takes(forced: ForcedCall, arguments: str) -> bool:
    """Whether a call with exactly these arguments can be written."""
    try:
        for byte in f'{{"name":"f","arguments":{arguments}}}'.encode():
            forced.accept(byte)
    except InvalidRequest:
        return False
    return forced.complete


@pytest.mark.parametrize(
    "parameters",
    [
        # every pair of patterns doubles the work
        only(a={"allOf": [{"type": "string", "pattern": f".*a.{{{n}}}x.*"} for n in range(24)]}),
        # any of them may come next
        {"properties": {f"k{n}": {"type": "integer"} for n in range(12_000)}},
    ],
    ids=["patterns", "properties"],
)
def test_a_schema_that_would_take_minutes_is_refused(parameters: Schema) -> None:
    made, tools = grammars(seconds=1), required(parameters)
    with pytest.raises(InvalidRequest, match="too complex") as caught:
        made.forced(tools, FORM)
    assert caught.value.param == "tools" and len(caught.value.message) < 400
    started = time.process_time()
    with pytest.raises(InvalidRequest, match="too complex"):  # and it is not tried again
        made.forced(tools, FORM)
    assert time.process_time() - started < 1


def test_a_check_that_fails_by_itself_refuses_no_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = required(only(a={"type": "string", "pattern": "^b$"}))
    made = grammars()
    with monkeypatch.context() as patch, pytest.raises(EngineFailure, match="checked"):
        patch.setattr("sys.executable", "/nonexistent/python")
        made.forced(tools, FORM)
    forced = made.forced(tools, FORM)
    assert forced is not None and takes(forced, '{"a":"b"}')


@pytest.mark.parametrize("digits", [19, 20, 30, 300, 400])
@pytest.mark.parametrize("sign", [1, -1])
def test_no_number_of_a_schema_is_an_error_of_the_server(digits: int, sign: int) -> None:
    """Python's integers have no end; the grammar engine's do."""
    made, number = grammars(), sign * 10**digits
    for schema in (
        {"const": number},
        {"type": "integer", "minimum": number},
        {"enum": [1, number]},
    ):
        try:
            forced = made.forced(required(only(a=schema)), FORM)
        except InvalidRequest as error:
            assert error.param == "tools"
        else:
            assert forced is not None


@pytest.mark.parametrize(
    ("parameters", "right", "wrong"),
    [
        # what looks like a reference is a value here
        (only(a={"const": {"$ref": "#/x"}}), {"a": {"$ref": "#/x"}}, {"a": {"$ref": "#/y"}}),
        (only(a={"enum": [{"$ref": "#"}]}), {"a": {"$ref": "#"}}, {"a": {"$ref": "#/$defs"}}),
        # and these keywords are names of properties
        (
            only(const={"$ref": "#/$defs/n"}) | {"$defs": {"n": {"const": 7}}},
            {"const": 7},
            {"const": 8},
        ),
        (
            only(properties={"$ref": "#/$defs/enum"}) | {"$defs": {"enum": {"const": 7}}},
            {"properties": 7},
            {"properties": 8},
        ),
        (only(**{"$ref": {"const": "#"}}), {"$ref": "#"}, {"$ref": "#/$defs/tool0"}),
        (
            {"definitions": {"default": only(b={"$ref": "#/definitions/examples"})}}
            | only(a={"$ref": "#/definitions/default"}),
            None,  # the schema names nothing
            None,
        ),
    ],
)
def test_references_are_told_from_values_and_names(
    parameters: Schema, right: Schema | None, wrong: Schema | None
) -> None:
    made = grammars()
    if right is None:
        with pytest.raises(InvalidRequest, match="does not exist"):
            made.forced(required(parameters), FORM)
        return
    for arguments, expected in ((right, True), (wrong, False)):
        forced = made.forced(required(parameters), FORM)
        assert forced is not None
        assert takes(forced, json.dumps(arguments, separators=(",", ":"))) is expected
