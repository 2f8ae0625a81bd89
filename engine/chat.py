"""From messages to tokens, one message at a time, at a cost that does not grow with the session.

A chat template must be prefix-stable (DESIGN §6): what it renders for n messages begins what
it renders for n + 1. Then a message's text is what it adds behind a short stand-in
conversation that ends with the same role, and the session itself never needs rendering again.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
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
from engine.template_probe import check_stable, check_timeless
from engine.transcript import arguments_value
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
_ASKED = (Message("system", "s"), Message("user", "u"))
HEAD_ROLES = ("system", "developer")
# stands in for an answer, and is found again in what a template makes of it
_ANSWER = "paceprobe"


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
        self._frames: dict[tuple[str | None, str], tuple[str, str]] = {}
        closing = self._closing_text()
        self.closing = self.encode(closing)
        self.tools: ToolFormat | None = find_tool_format(self._render, closing)
        self.thinks = thinks(str(tokenizer.chat_template))
        check_timeless(tokenizer)
        check_stable(self, self._render, tools=self.tools is not None, thinks=self.thinks)
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
            tools: ``ToolUse.definitions`` of the session; ``behind_head`` of them once a message
                of another role than the system's is before.

        Raises:
            InvalidRequest: the template refuses the message.
        """
        # a second message of the head stands behind the tools already
        head_goes_on = previous is not None and message.role in HEAD_ROLES
        shown = behind_head(tools) if head_goes_on else _shown_tools(previous, tools)
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

    def frame(self, previous: str | None, role: str) -> tuple[str, str]:
        """Text the template puts before and behind the content of a message of ``role`` that
        follows one of ``previous``, without tools; empty where it cannot be told."""
        key = (previous, role)
        if key not in self._frames:
            call_id = PROBE_CALL_ID if role == "tool" else None
            message = Message(role, _ANSWER, tool_call_id=call_id)  # type: ignore[arg-type]
            head = found = tail = ""
            with suppress(InvalidRequest):
                whole = self._render((*_stand_in(previous), message))
                added = self._added(self._prefix(previous, None), whole)
                head, found, tail = added.partition(_ANSWER)
            self._frames[key] = (head, tail) if found else ("", "")
        return self._frames[key]

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
        return render_chat(self.tokenizer, messages, tools, answer)

    @staticmethod
    def _added(prefix: str, whole: str) -> str:
        if not whole.startswith(prefix):
            raise InvalidRequest(
                "the model's chat template rewrites earlier messages here, so the session cannot "
                "be continued; choose a prefix-stable template",
                param="messages",
            )
        return whole[len(prefix) :]

    def _closing_text(self) -> str:
        """The text that ends an answer."""
        try:
            opening = self._render(_ASKED, answer=True)
            ended = self._render((*_ASKED, Message("assistant", _ANSWER)))
            answer, found, closing = self._added(opening, ended).rpartition(_ANSWER)
        except InvalidRequest as error:
            raise ModelError(f"{_NO_ANSWER} ({error.message})") from error
        # a space, or the rest of an empty think block, may stand before the answer
        if not found or _ANSWER in answer:
            raise ModelError(_NO_ANSWER)
        return closing


def render_chat(
    tokenizer: Any, messages: tuple[Message, ...], tools: str | None = None, answer: bool = False
) -> str:
    """What the tokenizer's template makes of a conversation.

    Args:
        tools: ``ToolUse.definitions``.
        answer: open an answer behind it.

    Raises:
        InvalidRequest: the template refuses it.
    """
    plain = [_for_template(message) for message in messages]
    shown = None if tools is None else json.loads(tools)
    try:
        text: str = tokenizer.apply_chat_template(
            plain, tools=shown, tokenize=False, add_generation_prompt=answer
        )
    except Exception as error:  # a template is a program of the model's: it may raise anything
        raise InvalidRequest(
            f"the model's chat template refuses the message: {error}", param="messages"
        ) from error
    return text


def _for_template(message: Message) -> dict[str, Any]:
    """The message as templates expect it: arguments of calls as objects."""
    item = {key: value for key, value in asdict(message).items() if value is not None}
    if message.reasoning is not None:
        item["reasoning_content"] = item.pop("reasoning")
    if message.tool_calls is not None:
        item["tool_calls"] = json.loads(message.tool_calls)
        for call in item["tool_calls"]:
            with suppress(ValueError):  # a call that was cut off stays text
                call["function"]["arguments"] = arguments_value(call["function"]["arguments"])
    return item


def behind_head(tools: str | None) -> str | None:
    """What stands for ``tools`` behind the head of a conversation.

    Templates show tools at the head, up to the first message that is not the system's; behind it
    any tools give the same text, and these are short.
    """
    return None if tools is None else PROBE_TOOLS


def _shown_tools(previous: str | None, tools: str | None) -> str | None:
    return tools if previous in (None, *HEAD_ROLES) else behind_head(tools)


_NO_ANSWER = (
    "the chat template is not prefix-stable: an answer is not rendered behind its prompt, "
    "so sessions cannot persist with it"
)


def _stand_in(previous: str | None) -> tuple[Message, ...]:
    role = "system" if previous == "developer" else previous
    return _STAND_INS[role]


def stop_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """End tokens named by the generation config and the tokenizer."""
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ids = set(ends if isinstance(ends, list) else [ends]) | {tokenizer.eos_token_id}
    return frozenset(i for i in ids if i is not None)
