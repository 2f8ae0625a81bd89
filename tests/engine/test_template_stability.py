"""What a shipped template has rendered never changes, in token ids, whatever follows.

Byte-level and SentencePiece stand-ins for the models' tokenizers, and SmolLM2's, whose tokens are
as long as real ones.
"""

from __future__ import annotations

import json
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from engine.chat import ChatFormat
from engine.template_files import shipped_template
from engine.types import Message
from tests.support.template_tokenizers import (
    SENTENCEPIECE,
    TOKENS,
    call,
    rendered,
    said,
    tokenizer_for,
    with_tokens,
)

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
TEXTS = st.text("ab \n<{[|é😀'\"1", max_size=8) | st.sampled_from(
    ["", " a", "a ", "\n\n", "/a", "1", "</think>", "<|im_end|>", "[/INST]", '{"a": 1}', "[1]"]
)
CALLS_MADE = st.lists(
    st.builds(call, st.sampled_from(["abcdefghi", "call_234567890"]), x=TEXTS), max_size=2
)
MESSAGES = st.lists(
    st.builds(said, st.sampled_from(["system", "developer", "user"]), TEXTS)
    | st.builds(said, st.just("assistant"), TEXTS)
    | st.builds(said, st.just("assistant"), TEXTS, reasoning_content=TEXTS, tool_calls=CALLS_MADE)
    | st.builds(said, st.just("tool"), TEXTS, tool_call_id=st.just("abcdefghi")),
    min_size=2,
    max_size=7,
)


@cache
def formats(name: str, folder: Path | None) -> ChatFormat:
    """The template on a made-up tokenizer, or on SmolLM2's, whose tokens are longer."""
    if folder is None:
        return ChatFormat(tokenizer_for(name))
    smollm2 = AutoTokenizer.from_pretrained(folder)
    return ChatFormat(with_tokens(smollm2, TOKENS[name], shipped_template(name).text))


def as_message(item: dict[str, Any]) -> Message:
    calls = deepcopy(item.get("tool_calls"))
    for made in calls or []:
        made["function"]["arguments"] = json.dumps(made["function"]["arguments"])
    return Message(
        item["role"],
        item["content"],
        tool_call_id=item.get("tool_call_id"),
        tool_calls=None if calls is None else json.dumps(calls),
        reasoning=item.get("reasoning_content"),
    )


@pytest.mark.parametrize(
    ("name", "vocabulary"),
    [(name, "small") for name in TOKENS]
    + [(n, "smollm2") for n in TOKENS if n not in SENTENCEPIECE],
)
@settings(derandomize=True, max_examples=25, deadline=None)
@given(messages=MESSAGES, shown=st.booleans())
def test_what_is_rendered_never_changes(
    request: pytest.FixtureRequest,
    name: str,
    vocabulary: str,
    messages: list[dict[str, Any]],
    shown: bool,
) -> None:
    folder = request.getfixturevalue("smollm2") if vocabulary == "smollm2" else None
    chat = formats(name, folder)
    tools = [TOOL] if shown else None
    pieces: list[int] = []
    before: list[int] = []
    previous = None
    for count, item in enumerate(messages, start=1):
        whole = chat.encode(rendered(chat.tokenizer, messages[:count], tools))
        assert whole[: len(before)] == before
        pieces += chat.message_tokens(
            previous, as_message(item), json.dumps(tools) if shown else None
        )
        assert pieces == whole
        before, previous = whole, item["role"]
    asked = chat.encode(rendered(chat.tokenizer, messages, tools, True))
    assert asked == pieces + chat.answer_prompt(previous, json.dumps(tools) if shown else None)
