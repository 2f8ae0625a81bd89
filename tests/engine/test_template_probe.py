"""The probe: what a chat template must keep stable, and what it may refuse."""

from __future__ import annotations

import pytest

from engine.chat import ChatFormat
from engine.errors import ModelError
from tests.support.own_templates import CHATML, HERMES_CALLS, HERMES_HEAD, PROMPT, hermes
from tests.support.template_tokenizers import QWEN_THINKS, byte_level

SEPARATE_RESULTS = (
    "{% elif m.role == 'tool' %}{{ '<|im_start|>tool\n' + m.content + '<|im_end|>\n' }}"
)
THOUGHTS = "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
ONE_CALL = (
    HERMES_CALLS,
    "{% if (m.tool_calls or []) | length > 1 %}{{ raise_exception('one!') }}{% endif %}"
    + HERMES_CALLS,
)
STABLE = {
    "tools": hermes("{{ m.content }}", SEPARATE_RESULTS),
    "tools and reasoning": hermes(THOUGHTS + "{{ m.content }}", SEPARATE_RESULTS),
    "one call at a time": hermes("{{ m.content }}", SEPARATE_RESULTS).replace(*ONE_CALL),
    "neither": "{% for m in messages %}" + CHATML + "{% endfor %}" + PROMPT,
}
SEPARATE = STABLE["tools"]
AT_THE_NEWEST_QUESTION = SEPARATE.replace(
    HERMES_HEAD, "{% set asked = messages | selectattr('role', 'equalto', 'user') | list %}"
).replace(CHATML, "{% if tools and m == asked[-1] %}{{ tools | tojson }}{% endif %}" + CHATML)
LAST_ONLY = "{% if loop.last %}" + THOUGHTS + "{% endif %}"
# what is wrong → (template, what the refusal says of it)
UNSTABLE = {
    "results are merged": (hermes("{{ m.content }}"), "consecutive tool results"),
    "tools move": (AT_THE_NEWEST_QUESTION, "with tools"),
    "tools move, one call at a time": (
        AT_THE_NEWEST_QUESTION.replace(*ONE_CALL),
        "with tools",
    ),
    "tools need a user message": (
        SEPARATE.replace(*ONE_CALL).replace(
            HERMES_HEAD,
            "{% if tools and messages[-1].role == 'system' %}{{ raise_exception('too short') }}"
            "{% endif %}" + HERMES_HEAD,
        ),
        "with tools",
    ),
    "old reasoning goes": (hermes(LAST_ONLY + "{{ m.content }}", SEPARATE_RESULTS), "reasoning"),
    "old reasoning goes, no tools": (
        "{% for m in messages %}" + LAST_ONLY + CHATML + "{% endfor %}" + PROMPT,
        "with reasoning",
    ),
    "the date": ("{{ strftime_now('%d %b %Y') }}" + STABLE["neither"], "shows today's date"),
}


@pytest.mark.parametrize("kind", STABLE)
def test_the_probe_accepts(kind: str) -> None:
    chat = ChatFormat(byte_level(QWEN_THINKS, STABLE[kind]))
    assert (chat.tools is not None) == (kind != "neither")
    assert chat.thinks == (kind == "tools and reasoning")


@pytest.mark.parametrize("kind", UNSTABLE)
def test_the_probe_refuses(kind: str) -> None:
    template, reason = UNSTABLE[kind]
    with pytest.raises(ModelError, match="not prefix-stable") as caught:
        ChatFormat(byte_level(QWEN_THINKS, template))
    assert reason in caught.value.message
