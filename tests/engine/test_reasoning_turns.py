"""Reasoning: given apart, matched when it comes back, shown as the template shows it."""

from __future__ import annotations

import pytest

from engine.errors import ReasoningDiverged
from engine.runner import ModelRunner
from engine.transcript import reasoning_digest, transcript_digests
from engine.types import Message
from tests.engine.support import check_engine, state_of
from tests.engine.tool_support import (
    ASKED,
    Script,
    answer,
    ask,
    engine_with,
)
from tests.support.protocol_model import CHAT_TEMPLATE, byte_tokenizer

THINKING = CHAT_TEMPLATE.replace(
    "(message.content or '') }}",
    "('<think>\n' + message.reasoning_content + '\n</think>\n\n' if message.reasoning_content"
    " else '') + (message.content or '') }}",
)


def test_reasoning_is_given_apart_and_matched_when_it_comes_back(
    tiny: ModelRunner, script: Script
) -> None:
    engine = engine_with(tiny, THINKING)
    script("<think>\nThey ask.\n</think>\n\nYes.")
    content, reasoning, _, done = answer(ask(engine, ASKED))
    assert (content, reasoning) == ("Yes.", "They ask.")
    # from the byte that completes the opening tag to the one before the closing tag is complete
    assert done.usage.reasoning_tokens == len(">\nThey ask.\n</think")
    ahead = [*ASKED, Message("assistant", "Yes."), Message("user", "Sure?")]
    back = [*ASKED, Message("assistant", "Yes.", reasoning="They ask.\n"), Message("user", "Sure?")]
    for transcript in (ahead, back):
        assert engine.match("", "s", transcript_digests(transcript)).known == 3
    changed = ((2, reasoning_digest("They beg.")),)
    with pytest.raises(ReasoningDiverged) as caught:
        ask(engine, (ahead[3],), known=3, returned=changed)
    assert caught.value.param == "messages.2.reasoning_content"
    script("Sure.")
    same = ((2, reasoning_digest("They ask.\n")),)
    _, _, _, done = answer(ask(engine, (ahead[3],), known=3, returned=same))
    text = byte_tokenizer().decode(list(state_of(engine, "s").tokens))
    assert "<think>\nThey ask.\n</think>\n\nYes.<|im_end|>\n<|im_start|>user\nSure?" in text
    engine.close()
    check_engine(engine)


def test_reasoning_of_a_new_transcript_reaches_the_template(
    tiny: ModelRunner, script: Script
) -> None:
    engine = engine_with(tiny, THINKING)
    script("ok")
    past = Message("assistant", "Yes.", reasoning="They ask.")
    ask(engine, (*ASKED, past, Message("user", "Sure?")))
    text = byte_tokenizer().decode(list(state_of(engine, "s").tokens))
    assert "assistant\n<think>\nThey ask.\n</think>\n\nYes.<|im_end|>" in text
    engine.close()
    check_engine(engine)


def test_an_answer_whose_prompt_opens_the_reasoning(tiny: ModelRunner, script: Script) -> None:
    opened = THINKING.replace("assistant\n' }}{% endif %}", "assistant\n<think>\n' }}{% endif %}")
    # every answer of the transcript begins so too, or the template would not be prefix-stable
    opened = opened.replace(
        "('<think>\n' + message.reasoning_content + '\n</think>\n\n' if message.reasoning_content"
        " else '')",
        "('<think>\n' + (message.reasoning_content or '') if message.role == 'assistant' else '')",
    )
    engine = engine_with(tiny, opened)
    script("Hm.\n</think>\nYes.")
    content, reasoning, _, _ = answer(ask(engine, ASKED))
    assert (content, reasoning) == ("Yes.", "Hm.")
    engine.close()
    check_engine(engine)
