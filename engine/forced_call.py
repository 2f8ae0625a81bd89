"""Makes a model write a call: tokens that would break the tool's JSON schema are never drawn.

The grammar engine is llguidance; here is what it needs to know about calls.
"""

from __future__ import annotations

import json
import threading
from typing import Any

import torch
from llguidance import LLMatcher, LLTokenizer
from torch import Tensor

from engine.chat_formats import ToolFormat
from engine.errors import InvalidRequest
from engine.schema_check import SchemaCheck
from engine.types import ToolUse

# Keywords that hold values, not schemas, and those that hold schemas by name.
_VALUES = frozenset({"const", "default", "enum", "examples"})
_NAMED_SCHEMAS = frozenset(
    {"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"}
)
_MOST_REASON = 300


class ForcedCall:
    """The rest of one call, behind ``ToolFormat.opening``. Used by one turn."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    @property
    def complete(self) -> bool:
        """Whether the call's object is closed. Raises InvalidRequest when it never can be."""
        if not self._matcher.is_stopped():
            return False
        if self._matcher.is_error() or not self._matcher.is_accepting():
            raise _refusal("no arguments satisfy it")
        return True

    def allowed(self, logits: Tensor) -> Tensor:
        """``logits`` ``[V]`` with −∞ for every token that cannot follow.

        Raises:
            InvalidRequest: the schema turns out to be more than can be enforced.
        """
        # one byte per token: 0 where it is forbidden
        mask = torch.frombuffer(bytearray(self._matcher.compute_logit_bias()), dtype=torch.uint8)
        count = min(len(mask), len(logits))
        if self._matcher.is_error():
            raise _refusal(_error(self._matcher))
        allowed = torch.zeros(len(logits), dtype=torch.bool)
        allowed[:count] = mask[:count] != 0
        return logits.masked_fill(~allowed.to(logits.device), float("-inf"))

    def accept(self, token: int) -> None:
        """Go on behind ``token``, one that was allowed.

        Raises:
            InvalidRequest: the schema turns out to be more than can be enforced.
        """
        if not self._matcher.consume_token(token):
            raise _refusal(_error(self._matcher))


class CallGrammars:
    """Grammars of forced calls for one tokenizer."""

    def __init__(self, tokenizer: Any, vocabulary: int, check: SchemaCheck | None = None) -> None:
        """
        Args:
            tokenizer: a fast tokenizer of transformers.
            vocabulary: size V of the model's logits.
            check: says which schemas are too complex; None: one of its own.
        """
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._prepared: LLTokenizer | None = None
        self._lock = threading.Lock()
        self._check = check or SchemaCheck()

    def forced(self, tools: ToolUse | None, form: ToolFormat | None) -> ForcedCall | None:
        """The grammar of a call of ``tools.name``, or of any of the tools; None unless a call is
        required. Thread-safe.

        Raises:
            InvalidRequest: a tool's parameters are a schema that cannot be enforced.
            EngineFailure: whether they are could not be found out.
        """
        if tools is None or form is None or tools.choice != "required":
            return None
        with self._lock:  # made when the first call is forced: it takes a moment
            prepared = self._prepare()
        grammar = _grammar(_call_schema(tools, form))
        if not self._check.feasible(tools.definitions, grammar):
            raise _refusal("it is too complex")
        matcher = LLMatcher(prepared, grammar, log_level=0)
        if matcher.is_error():
            raise _refusal(_error(matcher))
        return ForcedCall(matcher)

    def _prepare(self) -> LLTokenizer:
        if self._prepared is None:
            text = self._tokenizer.backend_tokenizer.to_str()
            self._prepared = LLTokenizer(
                text, n_vocab=self._vocabulary, eos_token=self._tokenizer.eos_token_id
            )
        return self._prepared


def _error(matcher: LLMatcher) -> str:
    # behind the first line comes the state of the grammar, with the answer's text
    return next(iter(matcher.get_error().splitlines()), "unknown reason")[:_MOST_REASON]


def _refusal(why: str) -> InvalidRequest:
    return InvalidRequest(
        "a call cannot be forced, since its parameters are not a schema this server can "
        f"enforce ({why}); simplify it, or use tool_choice 'auto'",
        param="tools",
    )


def _grammar(schema: dict[str, Any]) -> str:
    try:
        return str(
            LLMatcher.grammar_from_json_schema(
                # as text: of Python's integers it takes none beyond 64 bits
                json.dumps(schema),
                # no runs of space between tokens: a weak model would get lost in them
                overrides={"whitespace_flexible": False},
            )
        )
    except ValueError as error:  # a number that is no float, or nesting too deep
        raise _refusal(str(error)) from error


def _call_schema(tools: ToolUse, form: ToolFormat) -> dict[str, Any]:
    """JSON schema of a call's object. Parameters move below ``$defs``, their references too."""
    choices, definitions = [], {}
    for index, tool in enumerate(json.loads(tools.definitions)):
        function = tool["function"]
        if tools.name not in (None, function["name"]):
            continue
        place = f"tool{index}"
        parameters = function.get("parameters") or {"properties": {}}
        # clients read an object, also where the schema says so only by its properties
        definitions[place] = _moved(parameters, f"#/$defs/{place}") | {"type": "object"}
        properties: dict[str, Any] = {"name": {"const": function["name"]}}
        properties[form.arguments] = {"$ref": f"#/$defs/{place}"}
        choices.append(
            {
                "type": "object",
                "properties": properties,
                "required": list(properties),
                "additionalProperties": False,
            }
        )
    return {"anyOf": choices, "$defs": definitions}


def _moved(schema: Any, place: str) -> Any:
    """``schema`` with its references to itself pointing to ``place``."""
    if isinstance(schema, list):
        return [_moved(item, place) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _NAMED_SCHEMAS and isinstance(value, dict):  # whose keys are no keywords
            moved[key] = {name: _moved(item, place) for name, item in value.items()}
        else:
            moved[key] = value if key in _VALUES else _moved(value, place)
    reference = moved.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = place + reference[1:]
    return moved
