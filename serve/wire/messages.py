"""Chat messages on the wire and their canonical form."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from engine.transcript import canonical_calls
from engine.types import Message
from serve.wire.validation import Wire, refuse

# Keys a text part may carry without changing its text (cache hints, citations).
PART_EXTRAS = frozenset(
    {"annotations", "cache_control", "citations", "id", "index", "prompt_cache_breakpoint"}
)


class WireFunction(Wire):
    """The function an assistant called; ``arguments`` is JSON text."""

    name: str
    arguments: str


class WireToolCall(Wire):
    """One call of an assistant's message. ``index`` is left over from streaming."""

    id: str
    type: Literal["function"] = "function"
    function: WireFunction
    index: int | None = None


class WireMessage(Wire):
    """One message as a client sends it.

    ``reasoning_content`` (``reasoning`` to some clients) is what an answer began with. The
    fields behind it are what clients copy from an earlier answer: they do not reach the model.
    ``audio`` and ``function_call`` would, so they must be null.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Annotated[list[WireToolCall], Field(fail_fast=True)] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    annotations: Any = None
    id: Any = None
    refusal: None = None
    audio: None = None
    function_call: None = None

    @field_validator("content", mode="before")
    @classmethod
    def _join_parts(cls, value: object) -> object:
        if value is None or isinstance(value, str):
            return value
        if not isinstance(value, list):
            raise refuse("must be a string, or a list of text parts")
        return "".join(_part_text(index, part) for index, part in enumerate(value))

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.content is None and self.role != "assistant":
            raise refuse(f"a message of role {self.role} needs 'content'")
        if self.tool_calls and self.role != "assistant":
            raise refuse("'tool_calls' belong to messages of role assistant")
        if (self.reasoning or self.reasoning_content) and self.role != "assistant":
            raise refuse("'reasoning_content' belongs to messages of role assistant")
        if self.role == "tool" and not self.tool_call_id:
            raise refuse("a message of role tool needs 'tool_call_id'")
        return self

    def canonical(self) -> Message:
        """The engine's message; equal for every way a client may write the same one."""
        calls = self.tool_calls or ()
        return Message(
            role=self.role,
            content=self.content or "",
            name=self.name,
            tool_call_id=self.tool_call_id,
            tool_calls=canonical_calls(
                (call.id, call.function.name, call.function.arguments) for call in calls
            ),
            reasoning=self.reasoning_content or self.reasoning or None,
        )


def _part_text(index: int, part: object) -> str:
    if not isinstance(part, dict):
        raise refuse(f"part {index} must be an object with 'type' and 'text'")
    if part.get("type") != "text":
        raise refuse(f"part {index} is not of type 'text': only text works", unsupported=True)
    if not isinstance(part.get("text"), str):
        raise refuse(f"part {index} needs 'text', a string")
    extra = part.keys() - {"type", "text"} - PART_EXTRAS
    if extra:
        raise refuse(f"part {index} has the unknown key '{min(extra)}'", unsupported=True)
    return str(part["text"])
