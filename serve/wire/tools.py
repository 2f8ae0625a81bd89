"""``tools`` and ``tool_choice`` on the wire."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from engine.errors import InvalidRequest
from engine.types import ToolUse
from serve.wire.validation import UNSUPPORTED, Wire

MAX_TOOLS = 128

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
Choice = Literal["none", "auto", "required"]


class FunctionBody(Wire):
    """A function the model may call. ``strict`` holds for forced calls, whose arguments always
    follow the schema; other calls are the model's own."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolBody(Wire):
    """One tool; ``cache_control`` is a hint for other servers."""

    type: Literal["function"]
    function: FunctionBody
    cache_control: Any = None


class NamedFunction(Wire):
    """The function that must be called."""

    name: Name


class NamedChoice(Wire):
    """``tool_choice`` as an object."""

    type: Literal["function"]
    function: NamedFunction


def _kind(value: object) -> str:
    return "<object>" if isinstance(value, dict | NamedChoice) else "<word>"


ToolChoice = Annotated[
    Annotated[Choice, Tag("<word>")] | Annotated[NamedChoice, Tag("<object>")],
    Discriminator(_kind),
]
Tools = Annotated[list[ToolBody], Field(max_length=MAX_TOOLS, fail_fast=True)]


def tool_use(
    tools: Sequence[ToolBody] | None,
    choice: Choice | NamedChoice | None,
    parallel: bool | None,
    append: bool = False,
) -> ToolUse | None:
    """The engine's form of the three fields; None when they say nothing.

    Args:
        append: the session's tools are meant when none are given.

    Raises:
        InvalidRequest: two tools of one name, or a choice that no tool can satisfy.
    """
    name = choice.function.name if isinstance(choice, NamedChoice) else None
    if not tools and not append:
        if choice in (None, "none", "auto"):
            return None
        raise InvalidRequest(
            "Invalid value for 'tool_choice': a call can only be required when there are 'tools'.",
            param="tool_choice",
        )
    if not tools and choice in (None, "auto") and parallel is not False:
        return None
    names: set[str] = set()
    for index, tool in enumerate(tools or ()):
        if tool.function.name in names:
            raise InvalidRequest(
                f"Invalid value for 'tools.{index}.function.name': there is another tool "
                f"'{tool.function.name}'.",
                param=f"tools.{index}.function.name",
            )
        names.add(tool.function.name)
    if tools and name is not None and name not in names:
        raise InvalidRequest(
            f"Invalid value for 'tool_choice': there is no tool '{name}'.", param="tool_choice"
        )
    return ToolUse(
        definitions=_definitions(tools) if tools else "",
        choice="required" if name is not None or choice == "required" else _free(choice),
        name=name,
        parallel=parallel is not False,
    )


def _free(choice: object) -> Literal["auto", "none"]:
    return "none" if choice == "none" else "auto"


def _definitions(tools: Sequence[ToolBody]) -> str:
    """JSON text in the order models were taught, schemas in the client's order."""
    texts = []
    for index, tool in enumerate(tools):
        function: dict[str, Any] = {"name": tool.function.name}
        if tool.function.description is not None:
            function["description"] = tool.function.description
        if tool.function.parameters is not None:
            function["parameters"] = tool.function.parameters
            _check_schema(tool.function.parameters, f"tools.{index}.function.parameters")
        texts.append(_json({"type": "function", "function": function}, f"tools.{index}"))
    return f"[{', '.join(texts)}]"


def _json(tool: dict[str, Any], param: str) -> str:
    try:
        return json.dumps(tool, ensure_ascii=False, allow_nan=False)
    except ValueError as error:  # JSON has no largest number; Python's floats do
        raise InvalidRequest(
            f"Invalid value for '{param}': it holds a number that is too large.", param=param
        ) from error


def _check_schema(parameters: dict[str, Any], param: str) -> None:
    kind = parameters.get("type", "object")
    if kind != "object":
        raise InvalidRequest(
            f"Invalid value for '{param}': a function's parameters are a schema of type 'object'.",
            param=param,
            code=UNSUPPORTED,
        )
