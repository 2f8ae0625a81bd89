"""Reads one tool call, a JSON object, while it is being written."""

from __future__ import annotations

import json
import re
import secrets
import string
from dataclasses import dataclass, field

from engine.types import ToolCallDelta

# The order in which models are taught to write: then the arguments can be given out as they come.
_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*(?P<name>"(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*'
)
# nine letters or digits: the only form of id that Mistral's templates take back
_ID_CHARACTERS = string.ascii_letters + string.digits
_ID_LENGTH = 9


@dataclass(slots=True)
class Call:
    """A call of the answer. ``arguments`` is its JSON text, as far as it is known."""

    index: int
    name: str
    arguments: str = ""
    call_id: str = field(
        default_factory=lambda: "".join(secrets.choice(_ID_CHARACTERS) for _ in range(_ID_LENGTH))
    )


@dataclass(slots=True)
class _Nesting:
    """Where one is in JSON text: ``depth`` counts open brackets."""

    depth: int = 0
    in_string: bool = False
    _escaped: bool = False

    def step(self, character: str) -> None:
        if self._escaped:
            self._escaped = False
        elif self.in_string:
            self._escaped = character == "\\"
            self.in_string = character != '"'
        elif character == '"':
            self.in_string = True
        elif character in "{[":
            self.depth += 1
        elif character in "}]":
            self.depth -= 1


class CallScanner:
    """Takes the text of a call piece by piece.

    Attributes:
        raw: all text taken.
        call: the call, once its name is known.
        complete: the object is closed, and it is a call.
        broken: this is no call.
    """

    def __init__(self, index: int) -> None:
        self.raw = ""
        self.call: Call | None = None
        self.complete = False
        self.broken = False
        self._index = index
        self._nesting = _Nesting()
        self._streaming = False
        self._given: int | None = None

    def feed(self, text: str) -> int:
        """Take characters up to the end of the object; returns how many were taken."""
        for count, character in enumerate(text, start=1):
            self._step(character)
            if self.complete or self.broken:
                return count
        return len(text)

    def delta(self) -> ToolCallDelta | None:
        """What of the call has not been given out yet."""
        call = self.call
        if call is None or self._given == len(call.arguments):
            return None
        first = self._given is None
        piece = call.arguments[self._given or 0 :]
        self._given = len(call.arguments)
        if first:
            return ToolCallDelta(self._index, call.call_id, call.name, piece)
        return ToolCallDelta(self._index, None, None, piece)

    def _step(self, character: str) -> None:
        nesting = self._nesting
        if nesting.depth == 0 and character != "{":
            self.broken = not character.isspace()
            self.raw += character
            return
        if character == "{" and nesting.depth == 1 and not nesting.in_string and not self.call:
            self._begin_arguments()
        nesting.step(character)
        self.raw += character
        if self._streaming and self.call is not None:
            self.call.arguments += character
            self._streaming = nesting.depth > 1
        if nesting.depth == 0:
            self._end()

    def _begin_arguments(self) -> None:
        head = _HEAD.fullmatch(self.raw)
        if head is not None:
            self.call = Call(self._index, json.loads(head["name"]))
            self._streaming = True

    def _end(self) -> None:
        if self.call is not None:  # given out already
            self.complete = True
            return
        try:
            value = json.loads(self.raw)
        except ValueError:
            value = None
        name = value.get("name") if isinstance(value, dict) else None
        if not isinstance(name, str):
            self.broken = True
            return
        arguments = value.get("arguments", value.get("parameters"))
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments or {}, ensure_ascii=False)
        self.call = Call(self._index, name, arguments)
        self.complete = True
