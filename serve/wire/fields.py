"""Fields of ``/v1/chat/completions`` that this server accepts because they change nothing.

A field is accepted when it cannot change the answer, or when its value says "as usual". Any
other value is refused with 400 and the field's name, never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import InvalidRequest
from serve.wire.validation import UNSUPPORTED

# Whatever their value: labels, scheduling hints, and hints about speed.
WITHOUT_EFFECT = frozenset(
    {
        "metadata",
        "prediction",
        "priority",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning_effort",
        "request_id",
        "safety_identifier",
        "service_tier",
        "user",
    }
)

# Only with one of these values, or null.
USUAL_VALUES: Mapping[str, tuple[object, ...]] = {
    "add_generation_prompt": (True,),
    "audio": (),
    "best_of": (1,),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "min_p": (0,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "moderation": (),
    "n": (1,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "stop_token_ids": ([],),
    "store": (False,),
    "top_k": (-1, 0),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}

_REASONS: Mapping[str, str] = {
    "audio": "this server gives text only",
    "functions": "this server takes 'tools' instead",
    "function_call": "this server takes 'tool_choice' instead",
    "n": "this server gives one choice per request",
    "response_format": "only {'type': 'text'} is supported by this server",
    "moderation": "this server moderates nothing",
    "store": "this server stores no completions",
    "web_search_options": "this server searches nothing",
}


def drop_neutral(body: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    """The ``known`` fields of ``body``; the rest is checked to have no effect.

    Raises:
        InvalidRequest: a field would change the answer, or is unknown.
    """
    kept = {}
    for name, value in body.items():
        if name in known:
            kept[name] = value
        elif value is None or name in WITHOUT_EFFECT:
            continue
        elif name not in USUAL_VALUES:
            raise InvalidRequest(
                f"Unrecognized request argument supplied: {name}",
                param=name,
                code="unknown_parameter",
            )
        elif not any(_same(value, usual) for usual in USUAL_VALUES[name]):
            reason = _REASONS.get(name, "this value is not supported by this server")
            raise InvalidRequest(
                f"Unsupported value for '{name}': {reason}.", param=name, code=UNSUPPORTED
            )
    return kept


def _same(value: object, usual: object) -> bool:
    # True == 1 in Python, but not in JSON.
    return value == usual and isinstance(value, bool) == isinstance(usual, bool)
