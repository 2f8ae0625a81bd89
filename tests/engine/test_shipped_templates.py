"""The templates of ``configs/templates``: what they write.

The renderings are written out by hand from the formats the models' makers document. The models'
own tokenizers are not part of the checkout: ``template_tokenizers`` stand in for them.
"""

from __future__ import annotations

import pytest

from engine.template_files import shipped_names, shipped_template
from tests.support.template_tokenizers import (
    SENTENCEPIECE,
    TOKENS,
    call,
    rendered,
    said,
    tokenizer_for,
)

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
TOOL_JSON = '{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}'

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
        name: {
            kind: text.replace("·", " " if name in SENTENCEPIECE else "")
            for kind, text in says.items()
        }
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


@pytest.mark.parametrize("kind", SAID)
@pytest.mark.parametrize("name", SAYS)
def test_a_rendering(name: str, kind: str) -> None:
    assert rendered(tokenizer_for(name), *SAID[kind]) == SAYS[name][kind]


def test_every_template_says_what_it_is_for() -> None:
    for name in SAYS:
        text = str(shipped_template(name).text)
        about = text[: text.index("#}")]
        assert text.startswith("{#-") and "model's own template" in about, name


def test_thinking_can_be_switched_off_and_the_answer_begins_with_its_prompt() -> None:
    qwen = tokenizer_for("qwen3")
    asked = qwen.apply_chat_template(
        [said("user", "U")], tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    answered = qwen.apply_chat_template(
        [said("user", "U"), said("assistant", "A")], tokenize=False, enable_thinking=False
    )
    assert asked == QWEN_USER + NO_THOUGHT
    assert answered == asked + "A<|im_end|>\n"


def test_a_date_stands_in_a_llama_prompt_only_when_it_was_given() -> None:
    text = tokenizer_for("llama3.1").apply_chat_template(
        ASKED, tokenize=False, date_string="01 Jan 2025"
    )
    assert "December 2023\nToday Date: 01 Jan 2025\n\nS<|eot_id|>" in text
