"""From messages to tokens, one message at a time, at a cost that does not grow with the session.

A chat template must be prefix-stable (DESIGN §6): what it renders for n messages begins what
it renders for n + 1. Then a message's text is what it adds behind a short stand-in
conversation that ends with the same role, and the session itself never needs rendering again.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from engine.chat_formats import (
    PROBE_CALL_ID,
    PROBE_CALLS,
    PROBE_TOOLS,
    THINK_OPEN,
    ToolFormat,
    find_tool_format,
    thinks,
)
from engine.errors import InvalidRequest, ModelError
from engine.types import Message

_STAND_INS: dict[str | None, tuple[Message, ...]] = {
    None: (),
    "system": (Message("system", "s"),),
    "user": (Message("system", "s"), Message("user", "u")),
    "assistant": (Message("system", "s"), Message("user", "u"), Message("assistant", "a")),
    "tool": (
        Message("system", "s"),
        Message("user", "u"),
        Message("assistant", "", tool_calls=PROBE_CALLS),
        Message("tool", "t", tool_call_id=PROBE_CALL_ID),
    ),
}
_PROBE = (
    Message("system", "Be brief."),
    Message("user", "One\n\n  two?"),
    Message("assistant", " Three."),
    Message("user", "<four> five"),
    Message("assistant", "six\n"),
)
_ENDINGS = ("", "x", "1", " ", "\n", "é")
"""Ends of messages in the probe: one of them merges with what follows, if anything does."""


class ChatFormat:
    """Renders and tokenizes messages with a model's own template.

    Attributes:
        closing: token ids that end an answer after its last content token.
        stop_ids: token ids that end generation.
        tools: how the model writes tool calls; None: it cannot.
        thinks: answers may begin with reasoning in ``<think>`` tags.
        opens_thinking: the prompt of an answer already opens them.
    """

    def __init__(self, tokenizer: Any, stop_ids: frozenset[int] = frozenset()) -> None:
        """Raises ModelError when the template is missing or not prefix-stable."""
        self.tokenizer = tokenizer
        if not getattr(tokenizer, "chat_template", None):
            raise ModelError("the model's tokenizer has no chat template")
        self._prefixes: dict[tuple[str, bool], str] = {}
        closing = self._probe()
        self.closing = self.encode(closing)
        self.tools: ToolFormat | None = find_tool_format(self._render, closing)
        self.thinks = thinks(str(tokenizer.chat_template))
        opening = self._added(
            self._prefix("user", None), self._render(_stand_in("user"), None, True)
        )
        self.opens_thinking = self.thinks and opening.rstrip().endswith(THINK_OPEN)
        self.stop_ids = stop_ids | ({self.closing[0]} if self.closing else frozenset())

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``, without special tokens added around it."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def message_tokens(
        self, previous: str | None, message: Message, tools: str | None = None
    ) -> list[int]:
        """Token ids a message adds behind a message of role ``previous`` (None: the first).

        Args:
            tools: ``ToolUse.definitions`` of the session.

        Raises:
            InvalidRequest: the template refuses the message.
        """
        shown = _shown_tools(previous, tools)
        whole = self._render((*_stand_in(previous), message), shown)
        return self.encode(self._added(self._prefix(previous, shown), whole))

    def answer_prompt(self, previous: str | None, tools: str | None = None) -> list[int]:
        """Token ids that open an answer behind a message of role ``previous``."""
        shown = _shown_tools(previous, tools)
        whole = self._render(_stand_in(previous), shown, answer=True)
        return self.encode(self._added(self._prefix(previous, shown), whole))

    def closing_after(self, last: int) -> list[int]:
        """Tokens that end an answer whose last sampled token is ``last``."""
        return self.closing[1:] if self.closing[:1] == [last] else self.closing

    def _prefix(self, previous: str | None, tools: str | None) -> str:
        if previous is None:
            return ""
        if tools not in (None, PROBE_TOOLS):
            return self._render(_stand_in(previous), tools)
        key = (previous, tools is None)
        if key not in self._prefixes:
            self._prefixes[key] = self._render(_stand_in(previous), tools)
        return self._prefixes[key]

    def _render(
        self, messages: tuple[Message, ...], tools: str | None = None, answer: bool = False
    ) -> str:
        plain = [_for_template(message) for message in messages]
        shown = None if tools is None else json.loads(tools)
        try:
            text: str = self.tokenizer.apply_chat_template(
                plain, tools=shown, tokenize=False, add_generation_prompt=answer
            )
        except Exception as error:  # a template is a program of the model's: it may raise anything
            raise InvalidRequest(
                f"the model's chat template refuses the message: {error}", param="messages"
            ) from error
        return text

    @staticmethod
    def _added(prefix: str, whole: str) -> str:
        if not whole.startswith(prefix):
            raise InvalidRequest(
                "the model's chat template rewrites earlier messages here, so the session cannot "
                "be continued; choose a prefix-stable template",
                param="messages",
            )
        return whole[len(prefix) :]

    def _probe(self) -> str:
        """Check prefix stability on ids and find the text that ends an answer."""
        try:
            for ending in _ENDINGS:
                self._check(tuple(replace(m, content=m.content + ending) for m in _PROBE))
            opening = self._render(_PROBE[:2], answer=True)
            ended = self._render((*_PROBE[:2], Message("assistant", "x")))
            return self._added(opening + "x", ended)
        except InvalidRequest as error:
            raise ModelError(f"{_UNSTABLE.format('some')} ({error.message})") from error

    def _check(self, messages: tuple[Message, ...]) -> None:
        pieces: list[int] = []
        previous: str | None = None
        for count, message in enumerate(messages, start=1):
            if message.role == "assistant":
                asked = pieces + self.answer_prompt(previous)
                if asked != self.encode(self._render(messages[: count - 1], answer=True)):
                    raise ModelError(_UNSTABLE.format(f"the prompt after {count - 1}"))
            pieces += self.message_tokens(previous, message)
            previous = message.role
            if pieces != self.encode(self._render(messages[:count])):
                raise ModelError(_UNSTABLE.format(count))


def _for_template(message: Message) -> dict[str, Any]:
    """The message as templates expect it: arguments of calls as objects."""
    item = {key: value for key, value in asdict(message).items() if value is not None}
    if message.reasoning is not None:
        item["reasoning_content"] = item.pop("reasoning")
    if message.tool_calls is not None:
        item["tool_calls"] = json.loads(message.tool_calls)
        for call in item["tool_calls"]:
            with suppress(ValueError):  # a call that was cut off stays text
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return item


def _shown_tools(previous: str | None, tools: str | None) -> str | None:
    """Templates show tools at the head, up to the first user message; behind it any tools give
    the same text, and these are short."""
    return tools if tools is None or previous in (None, "system", "developer") else PROBE_TOOLS


_UNSTABLE = (
    "the model's chat template is not prefix-stable: rendering {} messages piece by piece "
    "differs from rendering them at once, so sessions cannot persist with it"
)


def _stand_in(previous: str | None) -> tuple[Message, ...]:
    role = "system" if previous == "developer" else previous
    return _STAND_INS[role]


def stop_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """End tokens named by the generation config and the tokenizer."""
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ids = set(ends if isinstance(ends, list) else [ends]) | {tokenizer.eos_token_id}
    return frozenset(i for i in ids if i is not None)
