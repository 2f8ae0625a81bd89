"""Calls whose arguments nest deeper than Python's JSON reader goes are text, not a failure."""

from __future__ import annotations

import json

import pytest

from engine.answer_parts import AnswerParts
from engine.chat import ChatFormat
from engine.transcript import canonical_calls
from engine.types import Message
from tests.support.protocol_model import byte_tokenizer

DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize("arguments", [DEEP, "[" * 100_000, '{"a": ' + DEEP + "}"])
def test_a_call_that_is_sent_back(arguments: str) -> None:
    with pytest.raises(RecursionError):
        json.loads(arguments)
    message = Message("assistant", "", tool_calls=canonical_calls([("c", "f", arguments)]))
    chat = ChatFormat(byte_tokenizer())
    text = chat.tokenizer.decode(chat.message_tokens("user", message))
    assert text.count("[") == arguments.count("[")


@pytest.mark.parametrize("final", [False, True])
def test_a_call_the_model_writes(final: bool) -> None:
    """It is no call; what was written is given as text."""
    text = '<tool_call>{"arguments": ' + DEEP + ', "name": "f"}</tool_call>'
    parts = AnswerParts(tagged_calls=True)
    part = parts.take(text, final=final)
    assert not parts.calls and part.content == text
