"""Is a chat template prefix-stable? Conversations of every kind, tokenized in pieces and at once.

What is not rendered here is checked when it is used: ``ChatFormat`` compares the text of every
message with what stood before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any, Protocol

from engine.chat_formats import PROBE_CALL_ID, PROBE_CALLS, PROBE_TOOLS, Render
from engine.errors import InvalidRequest, ModelError
from engine.types import Message

_SYSTEM = Message("system", "Be brief.")
_PLAIN = (
    Message("user", "One\n\n  two?"),
    Message("assistant", " Three."),
    Message("user", "<four> five"),
    Message("assistant", "six\n"),
)
_SECOND_ID = PROBE_CALL_ID[::-1]
_CALL = json.loads(PROBE_CALLS or "[{}]")[0]
_TWO_CALLS = json.dumps([_CALL, {**_CALL, "id": _SECOND_ID}])
_ONE_RESULT = (
    Message("user", "Look."),
    Message("assistant", "", tool_calls=PROBE_CALLS),
    Message("tool", '{"seen": 1}', tool_call_id=PROBE_CALL_ID),
    *_PLAIN[1:],
)
_TWO_RESULTS = (
    Message("user", "Look."),
    Message("assistant", "", tool_calls=_TWO_CALLS),
    Message("tool", "two", tool_call_id=PROBE_CALL_ID),
    Message("tool", "three", tool_call_id=_SECOND_ID),
    *_PLAIN[1:],
)
_ENDINGS = ("", "x", "1", " ", "\n", "é")
"""Ends of messages: one of them merges with what follows, if anything does."""

_UNSTABLE = (
    "the chat template is not prefix-stable: {} piece by piece differs from rendering "
    "them at once, so sessions cannot persist with it"
)


class Pieces(Protocol):
    """What the probe needs of a ``ChatFormat``."""

    def encode(self, text: str) -> list[int]: ...

    def message_tokens(
        self, previous: str | None, message: Message, tools: str | None = None
    ) -> list[int]: ...

    def answer_prompt(self, previous: str | None, tools: str | None = None) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class _Case:
    """A conversation. ``needed`` False: a template may refuse it, and so will the requests."""

    kind: str
    messages: tuple[Message, ...]
    tools: str | None = None
    needed: bool = False


def check_stable(chat: Pieces, render: Render, *, tools: bool, thinks: bool) -> None:
    """Raise ModelError unless messages tokenized one by one are the conversation's tokens.

    Args:
        tools: the template shows tools and writes calls.
        thinks: it writes reasoning.
    """
    for case in _cases(tools, thinks):
        try:
            if case.needed or _renders(render, case):
                # every ending of every plain message, one of the others: the probe must be fast
                for first in range(len(_ENDINGS) if case.kind == "" else 1):
                    _check(chat, render, case, first)
        except InvalidRequest as error:
            unstable = _UNSTABLE.format(f"rendering some messages{case.kind}")
            raise ModelError(f"{unstable} ({error.message})") from error


def check_timeless(tokenizer: Any) -> None:
    """Raise ModelError when the template shows the date: a session outlives the day."""
    plain = [{"role": "user", "content": "u"}]
    for messages in (plain, [{"role": "system", "content": "s"}, *plain]):
        try:
            shown = tokenizer.apply_chat_template(messages, tokenize=False)
        except Exception:  # refused: another check's matter
            continue
        try:
            # where it is called this text fails, since it is no function
            same = shown == tokenizer.apply_chat_template(
                messages, tokenize=False, strftime_now="no date"
            )
        except Exception:
            same = False
        if not same:
            raise ModelError(
                "the chat template is not prefix-stable: it shows today's date, so sessions "
                "cannot persist with it"
            )


def _cases(tools: bool, thinks: bool) -> Iterator[_Case]:
    shown = PROBE_TOOLS if tools else None
    yield _Case("", (_SYSTEM, *_PLAIN), needed=True)
    yield _Case(" without a system message", _PLAIN)
    if tools:
        yield _Case(" with tools", (_SYSTEM, *_ONE_RESULT), shown, needed=True)
        yield _Case(" with tools and no system message", _ONE_RESULT, shown)
        yield _Case(" with consecutive tool results", (_SYSTEM, *_TWO_RESULTS), shown)
    if thinks:
        yield _Case(" with reasoning", _thoughtful((_SYSTEM, *_PLAIN)))
        if tools:
            yield _Case(" with reasoning and tools", _thoughtful((_SYSTEM, *_TWO_RESULTS)), shown)


def _thoughtful(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The same with reasoning in every answer."""
    return tuple(
        replace(message, reasoning="Well,\nyes.") if message.role == "assistant" else message
        for message in messages
    )


def _renders(render: Render, case: _Case) -> bool:
    try:
        render(case.messages, case.tools, False)
    except InvalidRequest:
        return False
    return True


def _check(chat: Pieces, render: Render, case: _Case, first: int) -> None:
    """Compare pieces and whole after each message; ``first`` is the ending of the first."""
    messages = tuple(
        message if message.tool_calls else replace(message, content=message.content + ending)
        for message, ending in zip(case.messages, cycle(_ENDINGS[first:] + _ENDINGS[:first]))
    )
    pieces: list[int] = []
    previous: str | None = None
    for count, message in enumerate(messages, start=1):
        if message.role == "assistant":
            asked = pieces + chat.answer_prompt(previous, case.tools)
            if asked != chat.encode(render(messages[: count - 1], case.tools, True)):
                where = f"rendering the prompt after {count - 1} messages{case.kind}"
                raise ModelError(_UNSTABLE.format(where))
        pieces += chat.message_tokens(previous, message, case.tools)
        previous = message.role
        if pieces != chat.encode(render(messages[:count], case.tools, False)):
            raise ModelError(_UNSTABLE.format(f"rendering {count} messages{case.kind}"))
