"""Which chat template a model is served with: its own, a shipped one, or the one that was named.

A session persists only with a prefix-stable template (DESIGN §6; ``ChatFormat`` probes it). Some
models' own templates are not: ``configs/templates`` holds variants of them that are.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jinja2 import TemplateSyntaxError
from transformers import AutoConfig, AutoTokenizer

from engine.chat import ChatFormat, render_chat
from engine.chat_formats import PROBE_TOOLS, ToolFormat, find_tool_format
from engine.errors import InvalidRequest, ModelError
from engine.template_files import (
    OPTION,
    Template,
    read_template,
    shipped_names,
    shipped_template,
)
from engine.types import Message

log = logging.getLogger(__name__)

_SPM_SPACE = "▁"


@dataclass(frozen=True, slots=True)
class _Variant:
    """A shipped template: the ``model_type``s it is for, and tokens its vocabularies have."""

    name: str
    model_types: tuple[str, ...]
    needs: tuple[str, ...]


_CHATML = ("<|im_start|>", "<|im_end|>")
_V3 = ("[INST]", "[TOOL_CALLS]")
_V7 = (*_V3, "[SYSTEM_PROMPT]", "[TOOL_CONTENT]")
# in this order they are tried
_VARIANTS = (
    _Variant("qwen3", ("qwen3", "qwen3_moe"), (*_CHATML, "<think>")),
    _Variant("qwen2.5", ("qwen2",), (*_CHATML, "<tool_call>")),
    _Variant("qwen3-thinking", ("qwen2", "qwen3", "qwen3_moe"), (*_CHATML, "<think>")),
    _Variant("mistral-v7", ("mistral",), (*_V7, _SPM_SPACE)),
    _Variant("mistral-v7-tekken", ("mistral",), _V7),
    _Variant("mistral-v3", ("mistral", "mixtral"), (*_V3, _SPM_SPACE)),
    _Variant("mistral-v3-tekken", ("mistral",), _V3),
    _Variant("llama3.1", ("llama",), ("<|start_header_id|>", "<|eot_id|>", "<|eom_id|>")),
)


def load_tokenizer(path: Path, override: str | None = None, thinking: bool | None = None) -> Any:
    """The tokenizer of the model folder ``path``, with the template of ``choose_template``, which
    is logged.

    Args:
        thinking: sets the template's switch ``enable_thinking``; None: its own default.

    Raises:
        ModelError: config or tokenizer cannot be read; the template has no such switch; or as
            ``choose_template`` does.
    """
    tokenizer, template = tokenizer_and_template(path, override)
    if template.reason is None:
        log.info("chat template: %s", template.source)
    else:
        log.warning(
            "chat template: %s takes the place of the model's own: %s",
            template.source,
            template.reason,
        )
    if thinking is not None:
        tokenizer.chat_template = _switched(template, f"{thinking}".lower())
    return tokenizer


def _switched(template: Template, thinking: str) -> str | dict[str, str]:
    """The template's text, or texts by name, with its switch for reasoning set."""
    if "enable_thinking" not in str(template.text):
        raise ModelError(f"{template.source} has no switch for reasoning; leave thinking out")
    switch = f"{{%- set enable_thinking = {thinking} %}}"
    if isinstance(template.text, str):
        return switch + template.text
    return {name: switch + text for name, text in template.text.items()}


def tokenizer_and_template(path: Path, override: str | None = None) -> tuple[Any, Template]:
    """The tokenizer of a model folder, and the template it was given; as ``load_tokenizer``."""
    try:
        model_type = AutoConfig.from_pretrained(path, local_files_only=True).model_type
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        why = " ".join(str(error).split())
        raise ModelError(f"{path}: its config or tokenizer cannot be loaded: {why}") from error
    template = choose_template(tokenizer, model_type, override)
    tokenizer.chat_template = template.text
    return tokenizer, template


def choose_template(
    tokenizer: Any, model_type: str | None, override: str | None = None
) -> Template:
    """The template to serve with. ``tokenizer`` is not changed.

    Args:
        tokenizer: of transformers, with the model's own template if it has one.
        model_type: of the model's config.
        override: a file, or the name of a shipped template; None: the model's own, or where that
            is not prefix-stable the shipped variant of it.

    Raises:
        ModelError: the override cannot be read, is no Jinja or is not prefix-stable; or there is
            no override, and neither the model's own template nor a shipped one will do.
    """
    if override is not None:
        named = read_template(override)
        reason = _unusable(tokenizer, named)
        if reason:
            raise ModelError(f"--chat-template {override}: {reason}", param=OPTION)
        return named
    own = getattr(tokenizer, "chat_template", None)
    if own:
        reason = _unusable(tokenizer, Template(own, "the model's own"))
        if reason is None:
            return Template(own, "the model's own")
    else:
        reason = "the model's tokenizer has no chat template"
    for shipped in _variants_for(tokenizer, model_type):
        if _unusable(tokenizer, shipped) is None and (not own or _agree(tokenizer, shipped)):
            return replace(shipped, reason=reason)
    raise ModelError(
        f"{reason}; name another with --chat-template ({OPTION}): a file, or one "
        f"of those PACE ships: {', '.join(shipped_names())}",
        param=OPTION,
    )


def _variants_for(tokenizer: Any, model_type: str | None) -> Iterator[Template]:
    """Shipped templates whose tokens this vocabulary has, the likeliest first."""
    vocabulary = tokenizer.get_vocab()
    for variant in _VARIANTS:
        if model_type in variant.model_types and all(t in vocabulary for t in variant.needs):
            yield shipped_template(variant.name)


def _with(tokenizer: Any, template: Template) -> Any:
    """A tokenizer of the same vocabulary with another template."""
    other = copy.copy(tokenizer)
    other.chat_template = template.text
    return other


def _unusable(tokenizer: Any, template: Template) -> str | None:
    """Why sessions cannot persist with ``template``; None: they can."""
    other = _with(tokenizer, template)
    try:
        render_chat(other, (Message("user", "u"),))
    except InvalidRequest as error:
        if isinstance(error.__cause__, TemplateSyntaxError):
            return f"line {error.__cause__.lineno}: {error.__cause__.message}"
    try:
        ChatFormat(other)
    except ModelError as error:
        return error.message
    return None


# ---- is a shipped template one for this model? ------------------------------------------------

_WORD = "paceprobe"
_HEADS: tuple[tuple[Message, ...], ...] = ((), (Message("system", "s"),))
_ASKED = Message("user", "u")


@dataclass(frozen=True, slots=True)
class _Exchange:
    """What a template adds for a question and the prompt of its answer, and behind an answer."""

    asked: str
    closing: str


def _agree(tokenizer: Any, shipped: Template) -> bool:
    """Whether ``shipped`` writes a plain exchange and a tool call as the model's own template
    does: a model of the same type may have been trained on another format."""
    other = _with(tokenizer, shipped)
    for head in _HEADS:
        own, ours = _exchange(tokenizer, head), _exchange(other, head)
        if own is not None and own == ours:
            return _calls_agree(tokenizer, other, own.closing)
    return False


def _exchange(tokenizer: Any, head: tuple[Message, ...]) -> _Exchange | None:
    try:
        before = render_chat(tokenizer, head) if head else ""
        asked = render_chat(tokenizer, (*head, _ASKED), answer=True)
        answered = render_chat(tokenizer, (*head, _ASKED, Message("assistant", _WORD)))
    except InvalidRequest:
        return None
    if not asked.startswith(before) or _WORD not in answered:
        return None
    return _Exchange(asked[len(before) :], answered.rsplit(_WORD, 1)[1])


def _calls_agree(tokenizer: Any, other: Any, closing: str) -> bool:
    own, ours = _tool_format(tokenizer, closing), _tool_format(other, closing)
    if own is None:
        return not _shows_tools(tokenizer)
    return (
        ours is not None
        # an empty think block may stand before the call in the model's own
        and own.opening.endswith(ours.opening)
        and replace(own, opening=ours.opening) == ours
    )


def _tool_format(tokenizer: Any, closing: str) -> ToolFormat | None:
    """How calls are written: seen without a system message where that one moves about."""

    def render(messages: tuple[Message, ...], tools: str | None, answer: bool) -> str:
        return render_chat(tokenizer, messages, tools, answer)

    def headless(messages: tuple[Message, ...], tools: str | None, answer: bool) -> str:
        return render(tuple(m for m in messages if m.role != "system"), tools, answer)

    return find_tool_format(render, closing) or find_tool_format(headless, closing)


def _shows_tools(tokenizer: Any) -> bool:
    """Whether tools change what the model is shown."""
    messages = (*_HEADS[1], _ASKED)
    try:
        return render_chat(tokenizer, messages, PROBE_TOOLS) != render_chat(tokenizer, messages)
    except InvalidRequest:
        return True
