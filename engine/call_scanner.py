"""Reads one tool call, a JSON object, while it is being written."""

from __future__ import annotations

import json
import re
import secrets
import string
from dataclasses import dataclass, field

from engine.transcript import encodable
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
    """A call of the answer. ``pieces`` are its arguments, JSON text, as far as they are known."""

    index: int
    name: str
    pieces: list[str] = field(default_factory=list)
    call_id: str = field(
        default_factory=lambda: "".join(secrets.choice(_ID_CHARACTERS) for _ in range(_ID_LENGTH))
    )

    @property
    def arguments(self) -> str:
        """The pieces together."""
        return "".join(self.pieces)


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
    """Takes the text of a call piece by piece, at a cost that is linear in its length.

    Attributes:
        call: the call, once its name is known.
        complete: the object is closed, and it is a call.
        broken: this is no call.
        in_arguments: the text so far ends inside the arguments.
    """

    def __init__(self, index: int) -> None:
        self.call: Call | None = None
        self.complete = False
        self.broken = False
        self._index = index
        self._taken: list[str] = []
        self._nesting = _Nesting()
        self._head_read = False  # its first value that is an object was reached
        self.in_arguments = False
        self._given: int | None = None  # pieces that were given out; None: nothing was

    @property
    def raw(self) -> str:
        """All text taken."""
        return "".join(self._taken)

    def feed(self, text: str) -> int:
        """Take characters up to the end of the object; returns how many were taken."""
        nesting, count, start, closed = self._nesting, 0, 0, False
        for count, character in enumerate(text, start=1):
            if nesting.depth == 0 and character != "{":
                if character.isspace():
                    continue
                self.broken = True
                break
            opens = character == "{" and nesting.depth == 1 and not nesting.in_string
            if opens and not self._head_read:
                start = count - 1
                self._begin_arguments(self.raw + text[:start])
            nesting.step(character)
            if self.in_arguments and nesting.depth == 1:
                self._stream(text[start:count])
                self.in_arguments = False
            if nesting.depth == 0:
                closed = True
                break
        self._taken.append(text[:count])
        if self.in_arguments:
            self._stream(text[start:count])
        if closed:
            self._end()
        return count

    def delta(self) -> ToolCallDelta | None:
        """What of the call has not been given out yet."""
        call = self.call
        if call is None or self._given == len(call.pieces):
            return None
        first = self._given is None
        piece = "".join(call.pieces[self._given or 0 :])
        self._given = len(call.pieces)
        if first:
            return ToolCallDelta(self._index, call.call_id, call.name, piece)
        return ToolCallDelta(self._index, None, None, piece)

    def _stream(self, piece: str) -> None:
        if self.call is not None and piece:
            self.call.pieces.append(piece)

    def _begin_arguments(self, before: str) -> None:
        self._head_read = True
        head = _HEAD.fullmatch(before)
        if head is None:
            return
        try:
            name = json.loads(head["name"])
        except ValueError:  # what looks like a string need not be one
            return
        self.call = Call(self._index, encodable(name))
        self.in_arguments = True

    def _end(self) -> None:
        if self.call is not None:  # given out already
            self.complete = True
            return
        try:
            value = json.loads(self.raw)
        except (ValueError, RecursionError):
            value = None
        name = value.get("name") if isinstance(value, dict) else None
        if not isinstance(name, str):
            self.broken = True
            return
        arguments = value.get("arguments", value.get("parameters"))
        if not isinstance(arguments, str):
            try:
                arguments = json.dumps(arguments or {}, ensure_ascii=False, allow_nan=False)
            except ValueError:  # a number without a float, which JSON cannot say again
                self.broken = True
                return
        self.call = Call(self._index, encodable(name), [encodable(arguments)])
        self.complete = True
