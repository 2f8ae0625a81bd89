"""JSON schemas of what the server is sent, from the models of ``serve.wire``.

Pydantic knows the types of fields; what validators accept beside them, and the rules between
fields, is added here.
"""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema

from serve.openapi_answers import NULL, SESSION_ID, Schema, array, nullable, record, ref
from serve.wire.chat import MAX_STOPS, ChatBody
from serve.wire.fields import USUAL_VALUES, WITHOUT_EFFECT
from serve.wire.messages import PART_EXTRAS
from serve.wire.plan import PaceBody
from serve.wire.score import ScoreBody

_TEXT: Schema = {"type": "string"}
_NOTHING = nullable({"type": "array", "maxItems": 0})


def request_schemas() -> dict[str, Schema]:
    """Components by name: ``ChatBody``, ``ScoreBody``, ``PaceBody`` (with ``step``),
    ``Blueprint`` (without) and what they are made of."""
    kinds = [(kind, "validation") for kind in (ChatBody, ScoreBody, PaceBody)]
    _, made = models_json_schema(kinds, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    found: dict[str, Schema] = made["$defs"]
    message = found.pop("WireMessage")
    chat, pace = found["ChatBody"], found["PaceBody"]
    _complete_chat(chat)
    _complete_pace(pace)
    # the parameters of a function are those of an object
    parameters = {"type": "object", "properties": {"type": {"const": "object"}}}
    found["FunctionBody"]["properties"]["parameters"] = nullable(parameters)
    blueprint = {**pace, "properties": {**pace["properties"], "step": NULL}}
    return {
        **{name: _without_titles(schema) for name, schema in found.items()},
        **_messages(message),
        "Blueprint": _without_titles(blueprint)
        | {"description": "The object `pace` of a chat request, without `step`"},
    }


def _complete_chat(chat: Schema) -> None:
    fields = chat["properties"]
    stop = {"type": "string", "minLength": 1}
    fields["stop"] = {"anyOf": [stop, array(stop, maxItems=MAX_STOPS), NULL]}
    fields["session_id"] = nullable(SESSION_ID)
    for name in WITHOUT_EFFECT:
        fields[name] = {"description": "accepted, without effect"}
    for name, values in USUAL_VALUES.items():
        if name not in fields:
            fields[name] = {"enum": [*values, None], "description": "only as usual"}
    # a field nobody knows asks for nothing when it is null
    chat["additionalProperties"] = NULL


def _complete_pace(pace: Schema) -> None:
    fields = pace["properties"]
    fields["session_id"] = nullable(SESSION_ID)
    fields["policy"] = nullable({"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$"})
    plan = fields["plan"]["anyOf"][0]
    plan["propertyNames"] = {"pattern": "^[1-9][0-9]{0,8}$"}
    plan["description"] = "step → the earlier steps it reads"


def _messages(message: Schema) -> dict[str, Schema]:
    """``WireMessage`` by role: what is needed and what is allowed differ."""
    message = _without_titles(message)
    fields = message["properties"]
    content = {"anyOf": [_TEXT, array(ref("TextPart"))]}

    def variant(roles: list[str], required: list[str], **changed: Schema) -> Schema:
        role = {"type": "string", "enum": roles}
        return {
            **message,
            "properties": {**fields, "role": role, **changed},
            "required": ["role", *required],
        }

    none = nullable({"type": "string", "maxLength": 0})
    reasoning = {"reasoning": none, "reasoning_content": none}
    given = {"content": content, "tool_calls": _NOTHING, **reasoning}
    call_id: Schema = {"type": "string", "minLength": 1}
    return {
        "TextPart": record(
            {"type": {"type": "string", "const": "text"}, "text": _TEXT},
            {key: {} for key in sorted(PART_EXTRAS)},
        ),
        "TextMessage": variant(["system", "developer", "user"], ["content"], **given),
        "AssistantMessage": variant(["assistant"], [], content=nullable(content)),
        "ToolMessage": variant(
            ["tool"], ["content", "tool_call_id"], **given, tool_call_id=call_id
        ),
        "WireMessage": {"anyOf": [ref("TextMessage"), ref("AssistantMessage"), ref("ToolMessage")]},
    }


def _without_titles(schema: Any) -> Any:
    """Pydantic's titles say what the names say."""
    if isinstance(schema, dict):
        return {
            key: _without_titles(value)
            for key, value in schema.items()
            if not (key == "title" and isinstance(value, str))
        }
    return [_without_titles(item) for item in schema] if isinstance(schema, list) else schema
