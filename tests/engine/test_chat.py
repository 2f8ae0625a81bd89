"""Messages tokenized one at a time are the transcript tokenized at once, or are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from engine.chat import ChatFormat
from engine.errors import InvalidRequest, ModelError
from engine.transcript import canonical_json
from engine.types import Message
from tests.support.protocol_model import CHAT_TEMPLATE, byte_tokenizer

CALLS = canonical_json(
    [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
)
TEXTS = st.text("ab \n<>|€😀'", max_size=12) | st.sampled_from(
    [
        "<|im_end|>",
        "<|im_start|>user\nfake<|im_end|>\n",
        " leading",
        "trailing ",
        "\n\n",
        "1234",
        "",
    ]
)
MESSAGES = st.lists(
    st.builds(Message, st.sampled_from(["user", "assistant", "tool"]), TEXTS),
    min_size=1,
    max_size=6,
)


def piecewise(chat: ChatFormat, messages: list[Message]) -> list[int]:
    tokens: list[int] = []
    previous = None
    for message in messages:
        tokens += chat.message_tokens(previous, message)
        previous = message.role
    return tokens + chat.answer_prompt(previous)


def at_once(tokenizer: Any, messages: list[Message]) -> list[int]:
    plain = [{"role": message.role, "content": message.content} for message in messages]
    text = tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=True)
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


@pytest.fixture(scope="module", params=["protocol", "smollm2"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    if request.param == "protocol":
        return byte_tokenizer()
    folder: Path = request.getfixturevalue("smollm2")
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def chat(tokenizer: Any) -> ChatFormat:
    return ChatFormat(tokenizer)


@settings(derandomize=True, max_examples=80, deadline=None)
@given(messages=MESSAGES, system=st.booleans())
def test_pieces_are_the_whole(chat: ChatFormat, messages: list[Message], system: bool) -> None:
    if system:
        messages = [Message("system", "be brief"), *messages]
    assert piecewise(chat, messages) == at_once(chat.tokenizer, messages)


def test_the_closing_ends_a_sampled_answer_as_the_template_does(tokenizer: Any) -> None:
    chat = ChatFormat(tokenizer)
    asked = [Message("user", "hi")]
    answered = [*asked, Message("assistant", "yo"), Message("user", "?")]
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert chat.closing == [end, *tokenizer("\n", add_special_tokens=False)["input_ids"]]
    assert end in chat.stop_ids
    answer = tokenizer("yo", add_special_tokens=False)["input_ids"]
    for sampled in (answer, [*answer, end]):  # ended by length, ended by the end token
        log = piecewise(chat, asked) + sampled + chat.closing_after(sampled[-1])
        log += chat.message_tokens("assistant", answered[2]) + chat.answer_prompt("user")
        assert log == at_once(tokenizer, answered)


def test_tool_calls_names_and_ids_reach_the_template() -> None:
    tokenizer = byte_tokenizer()
    chat = ChatFormat(tokenizer)
    ids = chat.message_tokens("user", Message("assistant", "", tool_calls=CALLS))
    assert tokenizer.decode(ids) == (
        '<|im_start|>assistant\n<tool_call>{"arguments": {}, "name": "f"}</tool_call><|im_end|>\n'
    )
    tokenizer.chat_template = "{% for m in messages %}<|im_start|>{{ m.role }}/{{ m.name }}/" + (
        "{{ m.tool_call_id }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant//\n{% endif %}"
    )
    chat = ChatFormat(tokenizer)
    ids = chat.message_tokens("tool", Message("tool", "42", name="f", tool_call_id="c1"))
    assert tokenizer.decode(ids) == "<|im_start|>tool/f/c1\n42<|im_end|>\n"


def with_template(template: str | None) -> Any:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


PLAIN = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
UNSTABLE = {
    # the system prompt moves into the newest user message
    "system moves": "{% for m in messages %}{% if m.role != 'system' %}<|im_start|>{{ m.role }}\n"
    "{% if loop.last %}{{ messages[0].content }}{% endif %}{{ m.content }}<|im_end|>\n"
    "{% endif %}{% endfor %}" + PROMPT,
    "old answers vanish": "{% for m in messages %}{% if m.role != 'assistant' or loop.last %}"
    + PLAIN
    + "{% endif %}{% endfor %}"
    + PROMPT,
    "the end is marked": "{% for m in messages %}" + PLAIN + "{% endfor %}<|endoftext|>" + PROMPT,
    "messages are counted": "{{ messages|length }}{% for m in messages %}"
    + PLAIN
    + "{% endfor %}"
    + PROMPT,
    "the prompt is not how answers begin": "{% for m in messages %}"
    + PLAIN
    + "{% endfor %}{% if add_generation_prompt %}<|im_start|>model\n{% endif %}",
    "no system prompts": "{% for m in messages %}{% if m.role == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    + PLAIN
    + "{% endfor %}"
    + PROMPT,
}


@pytest.mark.parametrize("template", UNSTABLE.values(), ids=UNSTABLE)
def test_an_unstable_template_is_refused_at_load(template: str) -> None:
    with pytest.raises(ModelError, match="not prefix-stable"):
        ChatFormat(with_template(template))


def test_a_template_whose_messages_merge_into_one_token_is_refused(smollm2: Path) -> None:
    """Stable as text, but not in token ids: nothing separates the messages."""
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }} {{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}assistant {% endif %}"
    )
    with pytest.raises(ModelError, match="not prefix-stable"):
        ChatFormat(tokenizer)


def test_a_missing_template_is_refused_at_load() -> None:
    with pytest.raises(ModelError, match="no chat template"):
        ChatFormat(with_template(None))


REFUSING = {
    "by the template": "raise_exception('no!')",
    "type error": "1 + 'a'",
    "undefined": "nothing.here",
    "division": "1 // 0",
}


@pytest.mark.parametrize("refusal", REFUSING.values(), ids=REFUSING)
def test_a_message_the_template_refuses_is_an_invalid_request(refusal: str) -> None:
    check = "{% if messages[-1].content == 'bad' %}{{ " + refusal + " }}{% endif %}"
    chat = ChatFormat(with_template(check + CHAT_TEMPLATE))
    chat.message_tokens("user", Message("user", "good"))
    with pytest.raises(InvalidRequest, match="template refuses the message") as caught:
        chat.message_tokens("user", Message("user", "bad"))
    assert caught.value.param == "messages"


def test_consecutive_messages_the_template_merges_are_an_invalid_request() -> None:
    """Tool results in one block (as Qwen3 writes them): stable otherwise, refused when used."""
    template = (
        "{% for m in messages %}{% if m.role == 'tool' %}"
        "{% if messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user\n{% endif %}"
        "{{ m.content }};"
        "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
        "{% else %}" + PLAIN + "{% endif %}{% endfor %}" + PROMPT
    )
    chat = ChatFormat(with_template(template))
    assert chat.message_tokens("assistant", Message("tool", "1"))
    with pytest.raises(InvalidRequest, match="rewrites earlier messages"):
        chat.message_tokens("tool", Message("tool", "2"))
