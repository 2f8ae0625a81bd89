"""Splits an answer's text into reasoning, content and tool calls while it is being written.

Nothing is given out that later text could turn into something else: the beginning of a tag is
held back, and so is an object that may be a call until its name is known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass, field

from engine.call_scanner import Call, CallScanner
from engine.chat import ChatFormat
from engine.chat_formats import CALL_CLOSE, CALL_OPEN, THINK_CLOSE, THINK_OPEN
from engine.transcript import canonical_calls
from engine.types import Message, ToolCallDelta, ToolUse

# Written before calls without tags; tokenizers that count them as special leave them out.
_BARE_TAGS = ("<|python_tag|>", "[TOOL_CALLS]")
_BEFORE_CALLS = re.compile(rf"\s*(?:{'|'.join(map(re.escape, _BARE_TAGS))})?\s*\[?\s*")
_BETWEEN_CALLS = re.compile(r"[\s;,\]]*")


@dataclass(slots=True)
class Part:
    """What became final: pieces of each kind, possibly empty."""

    content: str = ""
    reasoning: str = ""
    calls: list[ToolCallDelta] = field(default_factory=list)


class AnswerParts:
    """Takes the text of an answer piece by piece.

    Attributes:
        content, reasoning: what was given out so far.
        calls: the calls so far, the last one perhaps incomplete.
        complete_calls: how many are complete.
        cut_off: the text ended inside the arguments of the last one.
        thinking: the text taken last belongs to the reasoning.
    """

    def __init__(
        self,
        *,
        thinks: bool = False,
        opens_thinking: bool = False,
        tagged_calls: bool = False,
        bare_calls: Collection[str] = (),
        one_call: bool = False,
    ) -> None:
        """
        Args:
            thinks: the text may begin with reasoning in tags.
            opens_thinking: the tag was opened before the text.
            tagged_calls: calls stand in ``<tool_call>`` tags.
            bare_calls: the whole text may be calls of these tools, without tags.
            one_call: nothing counts behind the first call.
        """
        self.content = ""
        self.reasoning = ""
        self.calls: list[Call] = []
        self.complete_calls = 0
        self.cut_off = False
        self.thinking = opens_thinking
        self._may_think = thinks and not opens_thinking
        self._tagged = tagged_calls
        self._bare = frozenset(bare_calls)
        self._one_call = one_call
        self._text = ""  # taken, and not yet decided
        self._scanner: CallScanner | None = None
        self._before = ""  # what stood between content and the call being read
        self._closing = False  # the closing tag of a call is due
        self._trim = False  # space at the beginning does not count

    @classmethod
    def of(cls, chat: ChatFormat, tools: ToolUse | None) -> AnswerParts:
        """For answers of ``chat``'s model; calls are read when ``tools`` may be called."""
        form = chat.tools if tools is not None and tools.choice != "none" else None
        if form is None or tools is None:
            return cls(thinks=chat.thinks, opens_thinking=chat.opens_thinking)
        return cls(
            thinks=chat.thinks,
            opens_thinking=chat.opens_thinking,
            tagged_calls=form.tagged,
            bare_calls=() if form.tagged else tool_names(tools.definitions),
            one_call=not tools.parallel,
        )

    @property
    def ended(self) -> bool:
        """Whether nothing that follows counts."""
        return self._one_call and self.complete_calls > 0

    def message(self) -> Message:
        """The answer as the client was given it."""
        calls = canonical_calls((c.call_id, c.name, c.arguments) for c in self.calls)
        return Message(
            "assistant", self.content, tool_calls=calls, reasoning=self.reasoning or None
        )

    def take(self, text: str, final: bool = False) -> Part:
        """The next piece of text; ``final``: nothing follows."""
        self._text += text
        part = Part()
        while not self.ended and self._step(part, final):
            pass
        self.content += part.content
        self.reasoning += part.reasoning
        return part

    def _step(self, part: Part, final: bool) -> bool:
        """Decide on the beginning of what is held; whether to go on."""
        if self._scanner is not None:
            return self._read_call(self._scanner, part, final)
        if self.thinking:
            return self._read_thought(part, final)
        if self._may_think:
            return self._begin(final)
        if self._closing:
            return self._close_call(final)
        if self._trim:
            self._text = self._text.lstrip()
            self._trim = not self._text
        if self._bare:
            return self._read_bare(part, final)
        if self._tagged:
            return self._read_tagged(part, final)
        part.content += self._text
        self._text = ""
        return False

    def _begin(self, final: bool) -> bool:
        """The very beginning: reasoning, or not."""
        start = self._text.lstrip()
        if not final and THINK_OPEN.startswith(start) and start != THINK_OPEN:
            return False
        if start.startswith(THINK_OPEN):
            self._text = start.removeprefix(THINK_OPEN)
            self.thinking = True
        self._may_think = False
        return True

    def _read_thought(self, part: Part, final: bool) -> bool:
        if not (self.reasoning or part.reasoning):
            self._text = self._text.lstrip()
        thought, tag, rest = self._text.partition(THINK_CLOSE)
        if tag or final:
            part.reasoning += thought.rstrip()
            self._text = rest
            self.thinking = not tag
            self._trim = True
            return bool(tag)
        given = _without_end(thought, THINK_CLOSE)
        part.reasoning += given
        self._text = thought[len(given) :]
        return False

    def _read_tagged(self, part: Part, final: bool) -> bool:
        before, tag, rest = self._text.partition(CALL_OPEN)
        if tag:
            given = before.rstrip()
            part.content += given
            self._begin_call(before[len(given) :] + tag, rest)
            return True
        given = before if final else _without_end(before, CALL_OPEN)
        part.content += given
        self._text = before[len(given) :]
        return False

    def _read_bare(self, part: Part, final: bool) -> bool:
        between = _BETWEEN_CALLS if self.calls else _BEFORE_CALLS
        start = self._text.lstrip()
        at = matched.end() if (matched := between.match(self._text)) else 0
        rest = self._text[at:]
        if not final and (not rest or any(tag.startswith(start) for tag in _BARE_TAGS)):
            return False
        if rest.startswith("{"):
            self._begin_call("" if self.calls else self._text[:at], rest)
        else:
            self._bare = frozenset()
            if self.calls:
                self._text = rest
        return True

    def _begin_call(self, before: str, text: str) -> None:
        self._before, self._text = before, text
        self._scanner = CallScanner(len(self.calls))

    def _read_call(self, scanner: CallScanner, part: Part, final: bool) -> bool:
        self._text = self._text[scanner.feed(self._text) :]
        call = scanner.call
        unknown = call is not None and bool(self._bare) and call.name not in self._bare
        ended = scanner.complete or scanner.broken or final
        if unknown or (call is None and ended):
            part.content += self._before + scanner.raw
            self._scanner, self._bare = None, frozenset()
            return True
        if call is not None:
            if len(self.calls) == call.index:
                self.calls.append(call)
            if delta := scanner.delta():
                part.calls.append(delta)
        if not ended:
            return False
        self._scanner = None
        self.cut_off = scanner.in_arguments
        self.complete_calls += scanner.complete
        self._closing = self._tagged
        self._trim = True
        return scanner.complete

    def _close_call(self, final: bool) -> bool:
        text = self._text.lstrip()
        if not final and CALL_CLOSE.startswith(text) and text != CALL_CLOSE:
            return False
        self._text = text.removeprefix(CALL_CLOSE)
        self._closing = False
        return True


def tool_names(definitions: str) -> list[str]:
    """Names of the tools in ``ToolUse.definitions``."""
    return [tool["function"]["name"] for tool in json.loads(definitions)]


def _without_end(text: str, tag: str) -> str:
    """``text`` without what may be the beginning of ``tag``, and without the space before it."""
    for size in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:size]):
            return text[:-size].rstrip()
    return text.rstrip()
