"""JSON schemas of what the server answers. Closed: a field that is not here is a mistake."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from engine.types import LedgerEvent, PaceInfo

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
NULL: Schema = {"type": "null"}
SESSION_ID: Schema = {"type": "string", "pattern": "^[A-Za-z0-9_.:-]{1,128}$"}


def ref(name: str) -> Schema:
    """A reference to a component."""
    return {"$ref": f"#/components/schemas/{name}"}


def const(value: str) -> Schema:
    """Exactly this text."""
    return {"type": "string", "const": value}


def nullable(schema: Schema) -> Schema:
    """``schema`` or null."""
    return {"anyOf": [schema, NULL]}


def array(items: Schema, **limits: int) -> Schema:
    """A list."""
    return {"type": "array", "items": items, **limits}


def record(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """An object of these fields and no others."""
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }


def answer_schemas() -> dict[str, Schema]:
    """Components by name."""
    return {**_ERRORS, **_chat(), **_MODELS, **_sessions()}


_ERRORS = {
    "Error": record(
        {
            "error": record(
                {
                    "message": {"type": "string", "minLength": 1},
                    "type": {
                        "type": "string",
                        "enum": [
                            "invalid_request_error",
                            "conflict_error",
                            "rate_limit_error",
                            "server_error",
                        ],
                    },
                    "param": nullable(STRING),
                    "code": STRING,
                }
            )
        }
    )
}

_MODELS = {
    "Model": record(
        {
            "id": STRING,
            "object": const("model"),
            "created": COUNT,
            "owned_by": STRING,
            "max_model_len": COUNT,
            "context_length": COUNT,
        }
    ),
    "ModelList": record({"object": const("list"), "data": array(ref("Model"))}),
    "Health": record({"status": const("ok")}),
}

_BYTES = array({"type": "integer", "minimum": 0, "maximum": 255})
_TOKEN = {"token": STRING, "logprob": {"type": "number", "maximum": 0}, "bytes": _BYTES}
_FINISH: Schema = {"type": "string", "enum": ["stop", "length", "tool_calls"]}
_TOKEN_IDS = {"token_ids": array(COUNT)}


def _chat() -> dict[str, Schema]:
    head = {
        "id": {"type": "string", "pattern": "^chatcmpl-"},
        "created": COUNT,
        "model": STRING,
        "system_fingerprint": STRING,
    }
    message = record(
        {"role": const("assistant"), "content": nullable(STRING), "refusal": NULL},
        {"reasoning_content": STRING, "tool_calls": array(ref("ToolCall"), minItems=1)},
    )
    function = record({"name": STRING, "arguments": STRING})
    choice = {"index": {"const": 0}, "logprobs": nullable(ref("Logprobs"))}
    whole = record({**choice, "message": message, "finish_reason": _FINISH}, _TOKEN_IDS)
    delta = record(
        {},
        {
            "role": const("assistant"),
            "content": STRING,
            "reasoning_content": STRING,
            "tool_calls": array(ref("ToolCallDelta"), minItems=1),
        },
    )
    part = record({**choice, "delta": delta, "finish_reason": nullable(_FINISH)}, _TOKEN_IDS)
    usage_and_pace = {"usage": ref("Usage"), "pace": ref("PaceInfo")}
    return {
        "ChatCompletion": record(
            {
                **head,
                "object": const("chat.completion"),
                "choices": array(whole, minItems=1, maxItems=1),
                **usage_and_pace,
            }
        ),
        "ChatCompletionChunk": record(
            {
                **head,
                "object": const("chat.completion.chunk"),
                "choices": array(part, maxItems=1),
            },
            usage_and_pace,
        ),
        "ToolCall": record({"id": STRING, "type": const("function"), "function": function}),
        "ToolCallDelta": {
            **record(
                {"index": COUNT, "function": record({"arguments": STRING}, {"name": STRING})},
                {"id": STRING, "type": const("function")},
            ),
            "description": "The first piece of a call has id and name; `arguments` of all, joined, "
            "are its JSON text",
        },
        "Usage": record(
            {
                "prompt_tokens": COUNT,
                "completion_tokens": COUNT,
                "total_tokens": COUNT,
                "prompt_tokens_details": record({"cached_tokens": COUNT}),
                "completion_tokens_details": record({"reasoning_tokens": COUNT}),
            }
        ),
        "Logprobs": record(
            {
                "content": array(record({**_TOKEN, "top_logprobs": array(record(_TOKEN))})),
                "refusal": NULL,
            }
        ),
        "PaceInfo": _closed(PaceInfo, replica=STRING),
    }


def _sessions() -> dict[str, Schema]:
    summary = {
        "session_id": SESSION_ID,
        "namespace": STRING,
        "policy": STRING,
        "status": {"type": "string", "enum": ["idle", "running"]},
        **dict.fromkeys(_COUNTS, COUNT),
        "residency": {**nullable(NUMBER), "description": "of the last turn"},
        "rotary_gap": {**nullable(INTEGER), "description": "of the last turn"},
        "sizes": record({**dict.fromkeys(_SIZES, COUNT), "position_limit": nullable(COUNT)}),
        "created": {"type": "number", "description": "Unix seconds"},
        "last_used": {"type": "number", "description": "Unix seconds"},
    }
    readers: Schema = {"type": "object", "additionalProperties": array(COUNT, minItems=1)}
    span = {"message": COUNT, "start": COUNT, "end": COUNT, "role": STRING, "step": COUNT}
    scored = {"token_ids": array(COUNT), "tokens": array(STRING), "logprobs": array(NUMBER)}
    return {
        "Plan": {
            **record({"steps": readers, "messages": readers}, {"more": COUNT}),
            "description": "What is read, by step and by message, each with the steps that read "
            "it. Of a plan of more than 20,000 pairs the first, and how many `more` there are.",
        },
        "SessionSummary": record(summary),
        "SessionList": record({"object": const("list"), "data": array(ref("SessionSummary"))}),
        "Session": record(
            {
                **summary,
                "policy_settings": {"type": "object"},
                "plan": ref("Plan"),
                "spans": array(record(span)),
                "previous_turn_kept": BOOLEAN,
            },
            {
                "integrity": {
                    **record({"ok": BOOLEAN, "problems": array(STRING)}),
                    "description": "Whether the states kept of it are whole. With `check=1`.",
                }
            },
        ),
        "SessionDeleted": record(
            {"id": SESSION_ID, "object": const("session.deleted"), "deleted": {"const": True}}
        ),
        "LedgerEvent": {**_closed(LedgerEvent), "description": _EVENT},
        "EventList": record(
            {
                "object": const("list"),
                "session_id": SESSION_ID,
                "data": array(ref("LedgerEvent")),
                "next": {**COUNT, "description": "`since` of the next request"},
            }
        ),
        "BlueprintAnswer": record(
            {
                "object": const("session.blueprint"),
                "session_id": SESSION_ID,
                "step": {**COUNT, "description": "the last committed step"},
                "plan": ref("Plan"),
                "unresolved": array(STRING),
            }
        ),
        "Scores": record(
            {
                "object": const("session.score"),
                "session_id": SESSION_ID,
                "continuations": array(record(scored), minItems=1),
                "residency": nullable(NUMBER),
                "rotary_gap": nullable(INTEGER),
            }
        ),
    }


_EVENT = """`seq` rises by one per session; the oldest events go first. By `kind`, with lists that
have an entry per layer and pairs that are [minimum, maximum] over layers:

- `eviction`: tokens in the row (`candidates`), `kept`, `evicted`, and `displaced` (of the plan, in
  the worst layer); `kept_by_class`, `lost_by_class` (a token's class is the first that fits of
  sink, recent, protected, other); `kept_protected`, `lowest_kept_score`, `highest_lost_score`,
  `highest_unprotected_score` per layer; `spans`: of each `message` that lost tokens how many
  (`lost`, per layer) and the `highest_lost_score`; `more_spans` sums up those beyond 24.
- `renumber`: the next position `before` and `after`, and the `limit`; `runs`: slots that got the
  positions from `new` on, `count` of them, and the old positions of the first (`old_first`, lowest
  over layers) and the last (`old_last`, highest).
- `residency`, at the end of a turn, and of each step of a long prompt that ends a chunk: of each
  `message` with resident tokens its `tokens`, and the `least` and `most` resident over layers;
  `more_spans` sums up those beyond 64.
- `turn`: tokens, residency, rotary gap, schedule and times of a turn."""

_SIZES = ("budget", "capacity", "sinks", "recent", "reserve")
_COUNTS = (
    "turns",
    "step",
    "messages",
    "tokens",
    "written_tokens",
    "resident_tokens",
    "evicted_tokens",
    "renumbers",
    "next_position",
    "kv_bytes",
    "full_kv_bytes",
)


def _closed(kind: type, **more: Schema) -> Schema:
    """A dataclass as it is written, with all its fields, and ``more``."""
    schema = TypeAdapter(kind).json_schema(mode="serialization")
    return record({**schema["properties"], **more})
