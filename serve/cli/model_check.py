"""What ``pace model check`` finds out about a model, in rows to be printed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engine.catalog import load_profile
from engine.chat import ChatFormat
from engine.errors import PaceError
from engine.runner import ModelRunner
from engine.templates import tokenizer_and_template


@dataclass(frozen=True, slots=True)
class Finding:
    """A line of the report. ``refused``: PACE does not serve the model because of it."""

    name: str
    found: str
    refused: bool = False


def examine(path: Path, device: str = "auto", template: str | None = None) -> Iterator[Finding]:
    """Load the model folder ``path`` and check it as a server would: chat template, then weights.

    Args:
        device, template: as ``pace serve --device`` and ``--chat-template``.
    """
    yield from _guarded("chat template", lambda: _chat(path, template))
    yield from _guarded("model", lambda: _model(path, device))


def _guarded(name: str, rows: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """A part that is refused is a line, so that the other part is reported too."""
    try:
        yield from rows()
    except PaceError as error:
        yield Finding(name, error.message, refused=True)


def _chat(path: Path, override: str | None) -> Iterator[Finding]:
    tokenizer, template = tokenizer_and_template(path, override)
    why = f", since {template.reason}" if template.reason else ""
    yield Finding("chat template", f"{template.source}{why}")
    chat = ChatFormat(tokenizer)
    yield Finding("tool calls", _tools(chat))
    yield Finding("thinking", "in <think> tags" if chat.thinks else "no")


def _tools(chat: ChatFormat) -> str:
    if chat.tools is None:
        return "none: the template shows no tools, or calls that cannot be read back"
    where = "in <tool_call> tags" if chat.tools.tagged else "the whole answer"
    return f'JSON with "{chat.tools.arguments}", {where}'


def _model(path: Path, device: str) -> Iterator[Finding]:
    dtype = load_profile(path).dtype
    runner = ModelRunner.load(path, device, getattr(torch, dtype) if dtype else None)
    config, found, checked = runner.config, runner.found, runner.checked
    assert checked is not None
    yield Finding("family", f"{config.model_type} ({type(runner.model).__name__})")
    yield Finding("layers", str(found.layers))
    heads = f"{found.heads} of queries, {found.kv_heads} of keys and values"
    yield Finding("heads", f"{heads}, {found.head_dim} dimensions each")
    yield Finding("rotary embedding", _rotary(config, runner))
    yield Finding("positions", f"{runner.model_range}")
    yield Finding("dtype", f"{str(runner.dtype).removeprefix('torch.')} on {runner.device}")
    yield Finding(
        "logits",
        f"at most {checked.difference:.2g} from the stock model's over {checked.tokens} tokens "
        f"(mean divergence {max(0.0, checked.divergence):.1g} nats)",
    )


def _rotary(config: Any, runner: ModelRunner) -> str:
    found = runner.found
    kind = config.rope_parameters.get("rope_type", "default")
    pairs = "neighbouring dimensions" if found.rotation.neighbours else "halves"
    text = f"{kind}, {found.dims} of {found.head_dim} dimensions, in pairs of {pairs}"
    unturned = sorted(found.rotation.unturned)
    return f"{text}; none in layers {', '.join(map(str, unturned))}" if unturned else text
