"""The templates of ``configs/templates``: what they write, and that it never changes afterwards.

The renderings are written out by hand from the formats the models' makers document. The models'
own tokenizers cannot be had here: ``template_tokenizers`` and SmolLM2's stand in for them.
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
from engine.template_files import shipped_names, shipped_template
from engine.types import Message
from tests.support.template_tokenizers import (
    LLAMA,
    MISTRAL_V3,
    MISTRAL_V7,
    QWEN,
    QWEN_THINKS,
    byte_level,
    sentencepiece,
    with_tokens,
)

TOKENS = {
    "qwen2.5": QWEN,
    "qwen3": QWEN_THINKS,
    "qwen3-thinking": QWEN_THINKS,
    "mistral-v3": MISTRAL_V3,
    "mistral-v3-tekken": MISTRAL_V3,
    "mistral-v7": MISTRAL_V7,
    "mistral-v7-tekken": MISTRAL_V7,
    "llama3.1": LLAMA,
}
SPM = ("mistral-v3", "mistral-v7")
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
TOOL_JSON = '{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}'


def call(call_id: str, **arguments: Any) -> dict[str, Any]:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": "f", "arguments": arguments},
    }


def said(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


ASKED = [said("system", "S"), said("user", "U")]
CALLED = [
    said("user", "U"),
    said("assistant", "", tool_calls=[call("abcdefghi", x=1), call("call_234567890", x="é")]),
    said("tool", "one", tool_call_id="abcdefghi"),
    said("tool", '{"two": 2}', tool_call_id="call_234567890"),
]
THOUGHT = [
    said("user", "U"),
    said("assistant", "A", reasoning_content="R"),
    said("user", "V"),
    said("assistant", "B"),
]
LATER_SYSTEM = [*ASKED, said("assistant", "A"), said("developer", "T"), said("user", "V")]

QWEN_TOOLS = f"""# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{TOOL_JSON}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call><|im_end|>
"""
QWEN_CALLS = """\
<tool_call>
{"name": "f", "arguments": {"x": 1}}
</tool_call>
<tool_call>
{"name": "f", "arguments": {"x": "é"}}
</tool_call><|im_end|>
"""
QWEN_RESULTS = """\
<|im_start|>user
<tool_response>
one
</tool_response><|im_end|>
<|im_start|>user
<tool_response>
{"two": 2}
</tool_response><|im_end|>
"""
QWEN_ASKED = """\
<|im_start|>system
S<|im_end|>
<|im_start|>user
U<|im_end|>
<|im_start|>assistant
"""
QWEN_LATER = """\
<|im_start|>system
S<|im_end|>
<|im_start|>user
U<|im_end|>
<|im_start|>assistant
A<|im_end|>
<|im_start|>system
T<|im_end|>
<|im_start|>user
V<|im_end|>
<|im_start|>assistant
"""
QWEN_DEFAULT = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
QWEN_USER = "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
NO_THOUGHT = "<think>\n\n</think>\n\n"
# "·" is the space that only the SentencePiece tokenizers have there
CALLS = (
    '[TOOL_CALLS]·[{"name": "f", "arguments": {"x": 1}, "id": "abcdefghi"}, '
    '{"name": "f", "arguments": {"x": "é"}, "id": "234567890"}]</s>'
)
V3_TOOLS = f"[AVAILABLE_TOOLS]·[{TOOL_JSON}][/AVAILABLE_TOOLS]"
V3_RESULTS = (
    '[TOOL_RESULTS]·{"content": "one", "call_id": "abcdefghi"}[/TOOL_RESULTS]'
    '[TOOL_RESULTS]·{"content": {"two": 2}, "call_id": "234567890"}[/TOOL_RESULTS]'
)
V7_RESULTS = (
    "[TOOL_RESULTS]·abcdefghi[TOOL_CONTENT]·one[/TOOL_RESULTS]"
    '[TOOL_RESULTS]·234567890[TOOL_CONTENT]·{"two": 2}[/TOOL_RESULTS]'
)
LLAMA_HEAD = "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
LLAMA_USER = "<|start_header_id|>user<|end_header_id|>\n\n"
LLAMA_ANSWER = "<|start_header_id|>assistant<|end_header_id|>\n\n"
LLAMA_RESULT = "<|start_header_id|>ipython<|end_header_id|>\n\n"
LLAMA_TOOLS = """\
Environment: ipython
Cutting Knowledge Date: December 2023

You have access to the following functions. To call a function, please respond with JSON for a \
function call. Respond in the format {"name": function name, "parameters": dictionary of argument \
name and its value}. Do not use variables.

{
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {
            "type": "object"
        }
    }
}

"""

# template → (what is said, are there tools, is an answer asked for) → rendering
ASK, CALL, THINK, LATER = "asked", "called", "thought", "later system"
SAID = {
    ASK: (ASKED, None, True),
    CALL: (CALLED, [TOOL], False),
    THINK: (THOUGHT, None, False),
    LATER: (LATER_SYSTEM, None, True),
}
MISTRAL_V3_SAYS = {
    ASK: "<s>[INST]·S[/INST][INST]·U[/INST]",
    CALL: f"<s>{V3_TOOLS}[INST]·U[/INST]{CALLS}{V3_RESULTS}",
    THINK: "<s>[INST]·U[/INST]·A</s>[INST]·V[/INST]·B</s>",
    LATER: "<s>[INST]·S[/INST][INST]·U[/INST]·A</s>[INST]·T[/INST][INST]·V[/INST]",
}
MISTRAL_V7_SAYS = {
    ASK: "<s>[SYSTEM_PROMPT]·S[/SYSTEM_PROMPT][INST]·U[/INST]",
    CALL: f"<s>{V3_TOOLS}[INST]·U[/INST]{CALLS}{V7_RESULTS}",
    THINK: "<s>[INST]·U[/INST]·A</s>[INST]·V[/INST]·B</s>",
    LATER: "<s>[SYSTEM_PROMPT]·S[/SYSTEM_PROMPT][INST]·U[/INST]·A</s>"
    "[SYSTEM_PROMPT]·T[/SYSTEM_PROMPT][INST]·V[/INST]",
}
SAYS = {
    "qwen3": {
        ASK: QWEN_ASKED,
        CALL: f"<|im_start|>system\n{QWEN_TOOLS}<|im_start|>user\nU<|im_end|>\n"
        f"<|im_start|>assistant\n{QWEN_CALLS}{QWEN_RESULTS}",
        THINK: f"{QWEN_USER}<think>\nR\n</think>\n\nA<|im_end|>\n"
        "<|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n",
        LATER: QWEN_LATER,
    },
    "qwen3-thinking": {
        ASK: f"{QWEN_ASKED}<think>\n",
        CALL: f"<|im_start|>system\n{QWEN_TOOLS}<|im_start|>user\nU<|im_end|>\n"
        f"<|im_start|>assistant\n{NO_THOUGHT}{QWEN_CALLS}{QWEN_RESULTS}",
        THINK: f"{QWEN_USER}<think>\nR\n</think>\n\nA<|im_end|>\n"
        f"<|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n{NO_THOUGHT}B<|im_end|>\n",
        LATER: QWEN_LATER.replace("assistant\nA", f"assistant\n{NO_THOUGHT}A") + "<think>\n",
    },
    "qwen2.5": {
        ASK: QWEN_ASKED,
        CALL: f"<|im_start|>system\n{QWEN_DEFAULT}\n\n{QWEN_TOOLS}"
        f"<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n{QWEN_CALLS}{QWEN_RESULTS}",
        THINK: f"<|im_start|>system\n{QWEN_DEFAULT}<|im_end|>\n{QWEN_USER}A<|im_end|>\n"
        "<|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n",
        LATER: QWEN_LATER,
    },
    **{
        name: {kind: text.replace("·", " " if name in SPM else "") for kind, text in says.items()}
        for name, says in (
            ("mistral-v3", MISTRAL_V3_SAYS),
            ("mistral-v3-tekken", MISTRAL_V3_SAYS),
            ("mistral-v7", MISTRAL_V7_SAYS),
            ("mistral-v7-tekken", MISTRAL_V7_SAYS),
        )
    },
    "llama3.1": {
        ASK: f"{LLAMA_HEAD}Cutting Knowledge Date: December 2023\n\nS<|eot_id|>"
        f"{LLAMA_USER}U<|eot_id|>{LLAMA_ANSWER}",
        CALL: f"{LLAMA_HEAD}{LLAMA_TOOLS}<|eot_id|>{LLAMA_USER}U<|eot_id|>{LLAMA_ANSWER}"
        '{"name": "f", "parameters": {"x": 1}}; {"name": "f", "parameters": {"x": "é"}}<|eot_id|>'
        f'{LLAMA_RESULT}"one"<|eot_id|>{LLAMA_RESULT}"{{\\"two\\": 2}}"<|eot_id|>',
        THINK: f"{LLAMA_HEAD}Cutting Knowledge Date: December 2023\n\n<|eot_id|>"
        f"{LLAMA_USER}U<|eot_id|>{LLAMA_ANSWER}A<|eot_id|>"
        f"{LLAMA_USER}V<|eot_id|>{LLAMA_ANSWER}B<|eot_id|>",
        LATER: f"{LLAMA_HEAD}Cutting Knowledge Date: December 2023\n\nS<|eot_id|>"
        f"{LLAMA_USER}U<|eot_id|>{LLAMA_ANSWER}A<|eot_id|>"
        "<|start_header_id|>system<|end_header_id|>\n\nT<|eot_id|>"
        f"{LLAMA_USER}V<|eot_id|>{LLAMA_ANSWER}",
    },
}


def test_all_shipped_templates_are_tested() -> None:
    assert sorted(SAYS) == sorted(TOKENS) == shipped_names()


@cache
def tokenizer(name: str) -> Any:
    make = sentencepiece if name in SPM else byte_level
    return make(TOKENS[name], shipped_template(name).text)


def rendered(tokenizer: Any, messages: Any, tools: Any = None, answer: bool = False) -> str:
    text: str = tokenizer.apply_chat_template(
        messages, tools=tools, tokenize=False, add_generation_prompt=answer
    )
    return text


@pytest.mark.parametrize("kind", SAID)
@pytest.mark.parametrize("name", SAYS)
def test_a_rendering(name: str, kind: str) -> None:
    assert rendered(tokenizer(name), *SAID[kind]) == SAYS[name][kind]


def test_every_template_says_what_it_is_for() -> None:
    for name in SAYS:
        text = str(shipped_template(name).text)
        about = text[: text.index("#}")]
        assert text.startswith("{#-") and "model's own template" in about, name


def test_thinking_can_be_switched_off_and_the_answer_begins_with_its_prompt() -> None:
    qwen = tokenizer("qwen3")
    asked = qwen.apply_chat_template(
        [said("user", "U")], tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    answered = qwen.apply_chat_template(
        [said("user", "U"), said("assistant", "A")], tokenize=False, enable_thinking=False
    )
    assert asked == QWEN_USER + NO_THOUGHT
    assert answered == asked + "A<|im_end|>\n"


def test_a_date_stands_in_a_llama_prompt_only_when_it_was_given() -> None:
    text = tokenizer("llama3.1").apply_chat_template(
        ASKED, tokenize=False, date_string="01 Jan 2025"
    )
    assert "December 2023\nToday Date: 01 Jan 2025\n\nS<|eot_id|>" in text


# ---- prefix stability

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
        return ChatFormat(tokenizer(name))
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
    [(name, "small") for name in TOKENS] + [(n, "smollm2") for n in TOKENS if n not in SPM],
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
