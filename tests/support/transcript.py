"""The tokens a transcript stands for, told from the chat template alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CLOSING = "<|im_end|>"
CALL, CALL_END = "<tool_call>", "</tool_call>"
# A private character: no template writes it, no test says it.
_ANSWER = "\ue000"

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Drawn:
    """An answer as the model drew it; ``opening`` was put before it, ``ending`` behind it."""

    ids: list[int]
    opening: str = ""
    ending: str = ""


def token_log(
    tokenizer: Any,
    messages: Messages,
    drawn: Mapping[int, Drawn] | None = None,
    **template: Any,
) -> list[int]:
    """Token ids of ``messages`` and of the opening of the next answer.

    Args:
        drawn: the answers at these places of ``messages``: their ids stand for all that the
            answer says, and their own end token for the template's.
        template: more arguments for the template.
    """
    drawn = drawn or {}
    plain = list(messages)
    for place, answer in drawn.items():
        content = answer.opening + _ANSWER + answer.ending
        plain[place] = {"role": "assistant", "content": content}
    text = tokenizer.apply_chat_template(
        plain, tokenize=False, add_generation_prompt=True, **template
    )
    first, *rest = text.split(_ANSWER)
    ids = encode(tokenizer, first)
    closing = tokenizer.convert_tokens_to_ids(CLOSING)
    for place, piece in zip(sorted(drawn), rest, strict=True):
        last, behind = drawn[place].ids, encode(tokenizer, piece)
        ids += [*last, *(behind[1:] if last[-1:] == behind[:1] == [closing] else behind)]
    return ids


def encode(tokenizer: Any, text: str) -> list[int]:
    """Token ids of ``text`` alone."""
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids
