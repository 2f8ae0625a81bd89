"""Which chat template a model gets, and what is refused. The templates called a model's own are
written for these tests: they do what the real ones do that makes them unstable."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from engine.chat import ChatFormat
from engine.config import EngineConfig, config_dir
from engine.engine import KVEngine
from engine.errors import ModelError
from engine.templates import choose_template
from tests.support.protocol_model import CHAT_TEMPLATE, byte_tokenizer
from tests.support.template_tokenizers import (
    LLAMA,
    MISTRAL_V3,
    MISTRAL_V7,
    QWEN,
    QWEN_THINKS,
    byte_level,
    sentencepiece,
)

# ---- templates as models have them

CHATML = "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
HERMES_HEAD = (
    "{% if tools %}{{ '<|im_start|>system\n' }}{% for t in tools %}{{ t | tojson }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endif %}"
)
HERMES_CALLS = (
    "{% for c in m.tool_calls or [] %}"
    '{{ \'<tool_call>\n{"name": "\' + c.function.name + \'", "arguments": \' }}'
    "{{ c.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}"
)
MERGED_RESULTS = (
    "{% elif m.role == 'tool' %}"
    "{% if messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}"
    "{{ '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}"
)
PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"


def hermes(answer: str, results: str = MERGED_RESULTS, prompt: str = PROMPT) -> str:
    return (
        HERMES_HEAD
        + "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|im_start|>assistant\n' }}"
        + answer
        + HERMES_CALLS
        + "{{ '<|im_end|>\n' }}"
        + results
        + "{% else %}"
        + CHATML
        + "{% endif %}{% endfor %}"
        + prompt
    )


LAST_THOUGHT_ONLY = (
    "{% if loop.last %}{{ '<think>\n' + (m.reasoning_content or '') + '\n</think>\n\n' }}"
    "{% endif %}{{ m.content }}"
)
QWEN3 = hermes(LAST_THOUGHT_ONLY)
QWEN3_THINKING = hermes(
    LAST_THOUGHT_ONLY, prompt=PROMPT.replace("assistant\n", "assistant\n<think>\n")
)
QWEN25 = hermes("{{ m.content }}")


def mistral(gap: str, *, v7: bool) -> str:
    """Tools, and before v7 the system message, stand with the newest question."""
    return (
        "{{ bos_token }}{% set asked = messages | selectattr('role', 'equalto', 'user') | list %}"
        + (
            "{% if messages[0].role != 'system' %}"
            "[SYSTEM_PROMPT]{{ strftime_now('%d') }}[/SYSTEM_PROMPT]{% endif %}"
            if v7
            else ""
        )
        + "{% for m in messages %}{% if m.role == 'user' %}{% if m == asked[-1] and tools %}"
        f"[AVAILABLE_TOOLS]{gap}" + "{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
        f"[INST]{gap}"
        + (
            ""
            if v7
            else "{% if loop.last and messages[0].role == 'system' %}"
            "{{ messages[0].content + '\n\n' }}{% endif %}"
        )
        + "{{ m.content }}[/INST]"
        + (
            "{% elif m.role == 'system' %}[SYSTEM_PROMPT]{{ m.content }}[/SYSTEM_PROMPT]"
            if v7
            else ""
        )
        + "{% elif m.role == 'assistant' and m.tool_calls %}"
        + f"[TOOL_CALLS]{gap}["
        + "{% for c in m.tool_calls %}{{ (c.function | tojson)[:-1] + ', ' }}"
        "{{ '\"id\": \"' + c.id + '\"}' }}"
        "{% endfor %}]{{ eos_token }}"
        "{% elif m.role == 'assistant' %}" + f"{gap}" + "{{ m.content + eos_token }}"
        "{% elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]"
        "{% endif %}{% endfor %}"
    )


LLAMA_OWN = (
    "{{ bos_token + '<|start_header_id|>system<|end_header_id|>\n\nToday Date: ' }}"
    "{{ strftime_now('%d %b %Y') }}{% if messages[0].role == 'system' %}"
    "{{ messages[0].content }}{% endif %}{{ '<|eot_id|>' }}"
    "{% for m in messages %}{% if m.role != 'system' %}"
    "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content + '<|eot_id|>' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)

REPLACED = {
    "qwen3": ("qwen3", byte_level(QWEN_THINKS, QWEN3)),
    "qwen3-thinking": ("qwen3_moe", byte_level(QWEN_THINKS, QWEN3_THINKING)),
    "qwen2.5": ("qwen2", byte_level(QWEN, QWEN25)),
    "mistral-v3": ("mistral", sentencepiece(MISTRAL_V3, mistral(" ", v7=False))),
    "mistral-v3-tekken": ("mistral", byte_level(MISTRAL_V3, mistral("", v7=False))),
    "mistral-v7": ("mistral", sentencepiece(MISTRAL_V7, mistral(" ", v7=True))),
    "mistral-v7-tekken": ("mistral", byte_level(MISTRAL_V7, mistral("", v7=True))),
    "llama3.1": ("llama", byte_level(LLAMA, LLAMA_OWN)),
}


def shipped(name: str) -> str:
    return str(config_dir() / "templates" / f"{name}.jinja")


@pytest.mark.parametrize("name", REPLACED)
def test_an_unstable_template_gives_way_to_the_shipped_one_of_its_format(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    model_type, tokenizer = REPLACED[name]
    own = tokenizer.chat_template
    with pytest.raises(ModelError, match="not prefix-stable"):
        ChatFormat(tokenizer)
    with caplog.at_level(logging.INFO):
        template = choose_template(tokenizer, model_type)
    assert template.source == shipped(name)
    assert template.text == Path(shipped(name)).read_text(encoding="utf-8")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert shipped(name) in record.message and "not prefix-stable" in record.message
    assert tokenizer.chat_template == own


@pytest.mark.parametrize("name", REPLACED)
def test_without_a_template_of_its_own_the_vocabulary_decides(name: str) -> None:
    model_type, full = REPLACED[name]
    make = sentencepiece if name in ("mistral-v3", "mistral-v7") else byte_level
    tokens = {
        "qwen3-thinking": QWEN_THINKS,
        "qwen3": QWEN_THINKS,
        "qwen2.5": QWEN,
        "llama3.1": LLAMA,
    }.get(name, MISTRAL_V7 if "v7" in name else MISTRAL_V3)
    # nothing but a template tells the two kinds of Qwen3 apart
    expected = "qwen3" if name == "qwen3-thinking" else name
    assert choose_template(make(tokens), model_type).source == shipped(expected)
    assert full.chat_template


def test_a_stable_template_is_kept_and_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        template = choose_template(byte_tokenizer(), "qwen3")
    assert (template.text, template.source) == (CHAT_TEMPLATE, "the model's own")
    assert not caplog.records


OTHER_FORMATS = {
    "other marks of messages": QWEN3.replace("<|im_start|>", "<|begin|>"),
    "another end of an answer": QWEN3.replace(
        HERMES_CALLS + "{{ '<|im_end|>\n' }}", HERMES_CALLS + "{{ '<|im_end|>' }}"
    ),
    "another end of an answer, no tools": QWEN3.replace(HERMES_HEAD, "").replace(
        HERMES_CALLS + "{{ '<|im_end|>\n' }}", "{{ '<|im_end|>' }}"
    ),
    "the prompt opens something else": QWEN3.replace(
        PROMPT, PROMPT.replace("assistant\n", "assistant\n<plan>")
    ),
    "calls in XML": QWEN3.replace(
        HERMES_CALLS,
        "{% for c in m.tool_calls or [] %}<tool_call>\n<function={{ c.function.name }}>"
        "{% endfor %}",
    ),
    "calls under another key": QWEN3.replace('"arguments"', '"parameters"'),
}


@pytest.mark.parametrize("own", OTHER_FORMATS.values(), ids=OTHER_FORMATS)
def test_a_model_of_the_same_type_with_another_format_is_refused(own: str) -> None:
    assert own != QWEN3
    with pytest.raises(ModelError) as caught:
        choose_template(byte_level(QWEN_THINKS, own), "qwen3")
    assert "not prefix-stable" in caught.value.message
    assert "--chat-template (engine.chat_template)" in caught.value.message
    assert "mistral-v3-tekken" in caught.value.message
    assert caught.value.param == "engine.chat_template"


def test_a_vocabulary_without_the_tokens_is_refused() -> None:
    with pytest.raises(ModelError, match="--chat-template"):
        choose_template(byte_level(MISTRAL_V3, QWEN3), "qwen3")


@pytest.mark.parametrize("model_type", ["gemma", None])
def test_a_model_without_any_template_is_refused(model_type: str | None) -> None:
    with pytest.raises(ModelError, match="has no chat template; name another with --chat-template"):
        choose_template(byte_level(QWEN_THINKS), model_type)


def test_a_file_in_the_working_folder_is_no_shipped_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "qwen3").write_text("nonsense")
    monkeypatch.chdir(tmp_path)
    assert choose_template(*reversed(REPLACED["qwen3"])).source == shipped("qwen3")


# ---- the option


def test_the_option_goes_before_the_models_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text(CHAT_TEMPLATE + "{# mine #}")
    tokenizer = byte_tokenizer()
    monkeypatch.chdir(tmp_path)
    for override in (str(file), "mine.jinja"):
        template = choose_template(tokenizer, "llama", override)
        assert (template.text, template.source) == (CHAT_TEMPLATE + "{# mine #}", str(file))
    assert choose_template(tokenizer, "llama", "qwen2.5").source == shipped("qwen2.5")


BAD_FILES = {
    "not UTF-8": (b"one\ntwo\n\xff\n", "line 3: is not UTF-8"),
    "empty": (b" \n", "is empty"),
    "larger than a template": (b"x" * ((1 << 20) + 1), "is larger than 1048576 bytes"),
    "no Jinja": (b"{% for m in messages %}\n{{ m.content }}\n{% endfo %}", "line 3: "),
    "unfinished": (b"{{ 'a' }}\n{% if x %}\n", "line "),
    "fails": (b"{{ 1 // 0 }}", "refuses the message"),
    "not prefix-stable": (QWEN3.encode(), "not prefix-stable"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_file_is_refused_with_path_and_place(kind: str, tmp_path: Path) -> None:
    content, reason = BAD_FILES[kind]
    file = tmp_path / "bad.jinja"
    file.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        choose_template(byte_level(QWEN_THINKS, CHAT_TEMPLATE), "qwen3", str(file))
    assert str(file) in caught.value.message and reason in caught.value.message
    assert caught.value.param == "engine.chat_template"


@pytest.mark.parametrize(
    "override", ["nowhere.jinja", "qwen4", "", "~nobody/x", "x" * 5000, "a\0b"]
)
def test_a_missing_file_is_refused_with_the_names_there_are(override: str) -> None:
    with pytest.raises(ModelError) as caught:
        choose_template(byte_tokenizer(), "llama", override)
    assert caught.value.message.startswith(f"--chat-template {override}: ")
    assert "llama3.1, mistral-v3, " in caught.value.message


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is not a file"):
        choose_template(byte_tokenizer(), "llama", str(tmp_path))


def test_an_engine_serves_with_the_template_it_was_given(
    protocol_model: Path, tmp_path: Path
) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text(CHAT_TEMPLATE.replace("<|im_end|>\n", "<|im_end|>\n\n"))
    engine = KVEngine.from_config(
        EngineConfig(model=str(protocol_model), device="cpu", chat_template=str(file))
    )
    try:
        closing = engine.chat.tokenizer.decode(engine.chat.closing)
    finally:
        engine.close()
    assert closing == "<|im_end|>\n\n"


# ---- the probe: what a template must keep stable

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


def test_a_tokenizer_with_several_templates_keeps_them() -> None:
    """Some tokenizers name one for tools; transformers chooses between them."""
    templates = {"default": STABLE["neither"], "tool_use": STABLE["tools"]}
    template = choose_template(byte_level(QWEN, templates), "llama")
    assert template.text == templates
    assert ChatFormat(byte_level(QWEN, templates)).tools is not None
    json.dumps(template.text)
