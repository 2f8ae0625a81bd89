"""JSON schemas of what readers see of a session: residents, tokens, steps, messages."""

from __future__ import annotations

from engine.types import CLASSES
from serve.openapi_answers import (
    BOOLEAN,
    COUNT,
    NUMBER,
    SESSION_ID,
    STRING,
    Schema,
    array,
    const,
    nullable,
    record,
    ref,
)

_CLASS: Schema = {
    "type": "integer",
    "minimum": -1,
    "maximum": len(CLASSES) - 1,
    "description": "Index into `classes`, the first that fits; -1: an empty bin.",
}
_SCORE = nullable(NUMBER)
_USE = {**nullable(COUNT), "description": "The step that reads it next."}


def view_schemas() -> dict[str, Schema]:
    """Components by name."""
    head = {
        "session_id": SESSION_ID,
        "step": COUNT,
        "at": {**COUNT, "description": "Tokens written then."},
        "tokens": {**COUNT, "description": "Tokens of the session then."},
        "source": {
            "type": "string",
            "enum": ["row", "summary"],
            "description": "`row`: the committed state; `summary`: what is kept of a past step, "
            "with the exact tokens of every layer, scores to a few percent and no physical "
            "positions.",
        },
    }
    listed = {**head, "object": const("list")}
    following = nullable(COUNT)
    layer = {
        "layer": COUNT,
        "logical": array(COUNT),
        "physical": array(nullable(COUNT)),
        "score": array(_SCORE),
        "class": array(_CLASS),
        "next_use": array(_USE),
    }
    bins = {
        "edges": {**array(COUNT), "description": "One more than there are bins."},
        "counts": array(array(COUNT)),
        "class": {**array(array(_CLASS)), "description": "The most frequent in the bin."},
        "next_use": {**array(array(_USE)), "description": "The soonest in the bin."},
        "score": {**array(array(_SCORE)), "description": "The highest in the bin."},
    }
    tokens = {
        "logical": array(COUNT),
        "id": array(COUNT),
        "text": array(STRING),
        "message": array(COUNT),
    }
    held = {
        "layers": {**array(COUNT), "description": "How many layers hold it."},
        "physical": {**array(nullable(COUNT)), "description": "The lowest over layers."},
        "class": array(_CLASS),
        "next_use": array(_USE),
        "score": {**array(_SCORE), "description": "The highest over layers."},
    }
    return {
        "Residency": {
            **record(
                {
                    **head,
                    "object": const("session.residency"),
                    "resolution": const("exact"),
                    "layers": COUNT,
                    "resident": {**COUNT, "description": "Tokens resident in each layer."},
                    "classes": {"const": list(CLASSES)},
                    "first_layer": {**COUNT, "description": "Layer of the first row."},
                    "next_layer": {**following, "description": "Go on with this layer."},
                    "next": {
                        **following,
                        "description": "When one layer exceeds 1 MB: go on with that one in "
                        "`layers` and this `start`.",
                    },
                },
                {"data": array(record(layer)), "bins": record(bins)},
            ),
            "description": "`bins` when they were asked for, with a row per layer; else `data`.",
        },
        "TokenList": {
            **record({**listed, "data": record(tokens, held), "next": following}),
            "description": "Columns. `next`: `start` of the next page.",
        },
        "StepRow": record(_step()),
        "StepList": record(
            {
                "object": const("list"),
                "session_id": SESSION_ID,
                "data": array(ref("StepRow")),
                "next": {**COUNT, "description": "`since` of the next request: a turn."},
            }
        ),
        "SessionMessageList": record(
            {**listed, "data": array(record(_message())), "next": following}
        ),
    }


def _step() -> dict[str, Schema]:
    seconds = ("queued_s", "prefill_s", "decode_s", "forward_s", "evict_s", "renumber_s")
    return {
        **dict.fromkeys(_STEP_COUNTS, COUNT),
        "messages": {
            **array(COUNT, minItems=2, maxItems=2),
            "description": "The turn's messages: the first, and the one behind the last. A turn "
            "that is redone takes the row of the one before.",
        },
        "residency": nullable(NUMBER),
        "rotary_gap": nullable({"type": "integer"}),
        "by_class": {
            **record(dict.fromkeys(CLASSES, NUMBER)),
            "description": "Resident tokens, mean over layers.",
        },
        "lowest_kept_score": {**_SCORE, "description": "At the turn's last eviction."},
        "highest_unprotected_score": _SCORE,
        "times": record(dict.fromkeys(seconds, NUMBER)),
        "time": {**NUMBER, "description": "Unix seconds"},
        "unresolved": {
            **array(STRING),
            "description": "What the request's plan named in vain, the first 20.",
        },
        "held": {**BOOLEAN, "description": "`?step=` shows what was resident after this turn."},
    }


def _message() -> dict[str, Schema]:
    return {
        **dict.fromkeys(("message", "step", "start", "end"), COUNT),
        "role": STRING,
        "readers": {**array(COUNT), "description": "The next 64 steps that will."},
        "read_by": {
            **array(COUNT, maxItems=64),
            "description": "The steps so far that did read it, by the plan of their time.",
        },
        "next_use": _USE,
        "resident": {
            **array(COUNT, minItems=2, maxItems=2),
            "description": "Its resident tokens, least and most over layers.",
        },
        "preview": {**STRING, "description": "The first 200 characters."},
    }


_STEP_COUNTS = (
    "step",
    "turn",
    "at",
    "resident",
    "evicted",
    "renumbers",
    "displaced",
    "new_tokens",
    "cached_tokens",
    "restored_tokens",
    "completion_tokens",
    "kv_bytes",
    "full_kv_bytes",
)
