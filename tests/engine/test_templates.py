"""Which chat template a model gets, and what is refused."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from engine.chat import ChatFormat
from engine.config import EngineConfig, config_dir
from engine.engine import KVEngine
from engine.errors import ModelError
from engine.template_files import Template
from engine.templates import choose_template, load_tokenizer
from engine.types import Message
from tests.support.own_templates import (
    CHATML,
    HERMES_CALLS,
    HERMES_HEAD,
    LLAMA_OWN,
    PROMPT,
    QWEN3,
    QWEN3_THINKING,
    QWEN25,
    mistral,
)
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
def test_an_unstable_template_gives_way_to_the_shipped_one_of_its_format(name: str) -> None:
    model_type, tokenizer = REPLACED[name]
    own = tokenizer.chat_template
    with pytest.raises(ModelError, match="not prefix-stable"):
        ChatFormat(tokenizer)
    template = choose_template(tokenizer, model_type)
    assert template.source == shipped(name)
    assert template.text == Path(shipped(name)).read_text(encoding="utf-8")
    assert "not prefix-stable" in str(template.reason)
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


def test_a_stable_template_is_kept() -> None:
    template = choose_template(byte_tokenizer(), "qwen3")
    assert template == Template(CHAT_TEMPLATE, "the model's own")


@pytest.mark.parametrize(
    ("own", "override", "level", "said"),
    [
        (CHAT_TEMPLATE, None, logging.INFO, "chat template: the model's own"),
        (CHAT_TEMPLATE, "qwen2.5", logging.INFO, "chat template: {qwen2.5}"),
        (
            QWEN25,
            None,
            logging.WARNING,
            "chat template: {qwen2.5} takes the place of the model's own: the chat template is "
            "not prefix-stable: ",
        ),
    ],
)
def test_one_line_of_the_log_says_which_it_is(
    own: str,
    override: str | None,
    level: int,
    said: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    byte_level(QWEN, own).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    with caplog.at_level(logging.INFO, "engine"):
        tokenizer = load_tokenizer(tmp_path, override)
    (record,) = caplog.records
    assert record.levelno == level
    assert record.message.startswith(said.replace("{qwen2.5}", shipped("qwen2.5")))
    kept = own == CHAT_TEMPLATE and override is None
    text = own if kept else Path(shipped("qwen2.5")).read_text(encoding="utf-8")
    assert tokenizer.chat_template == text


@pytest.mark.parametrize(
    ("model_type", "tokenizer"), [("qwen2", "{"), ("qwen2", "{}"), ("llama", ""), ("none-such", "")]
)
def test_a_broken_tokenizer_is_refused_in_one_line(
    model_type: str, tokenizer: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    if tokenizer:
        (tmp_path / "tokenizer.json").write_text(tokenizer)
    with pytest.raises(ModelError, match="config or tokenizer cannot be loaded") as caught:
        load_tokenizer(tmp_path)
    assert str(tmp_path) in caught.value.message and "\n" not in caught.value.message


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


def test_a_tokenizer_with_several_templates_keeps_them() -> None:
    """Some tokenizers name one for tools; transformers chooses between them."""
    plain = "{% for m in messages %}" + CHATML + "{% endfor %}" + PROMPT
    tokenizer = byte_level(QWEN, {"default": plain, "tool_use": CHAT_TEMPLATE})
    assert choose_template(tokenizer, "llama").text == tokenizer.chat_template
    assert ChatFormat(tokenizer).tools is not None


def test_reasoning_is_switched_where_the_template_can(protocol_model: Path) -> None:
    block = "<think>\n\n</think>\n\n"
    for thinking, opens in ((None, False), (True, False), (False, True)):
        tokenizer = load_tokenizer(protocol_model, shipped("qwen3"), thinking)
        chat = ChatFormat(tokenizer)  # still prefix-stable
        opening = tokenizer.decode(chat.answer_prompt("user"))
        assert opening.endswith(block) is opens
        answer = chat.message_tokens("user", Message("assistant", "yes"))
        assert (block in tokenizer.decode(answer)) is opens
    with pytest.raises(ModelError, match="no switch for reasoning"):
        load_tokenizer(protocol_model, None, False)


def test_the_engine_passes_the_switch_on(protocol_model: Path) -> None:
    """A template without one is refused before any weights are read."""
    config = EngineConfig(model=str(protocol_model), thinking=False)
    with pytest.raises(ModelError, match="no switch for reasoning"):
        KVEngine.from_config(config)
