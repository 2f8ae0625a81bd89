"""The tokens a transcript stands for, told from the chat template alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

CLOSING = "<|im_end|>"
# A private character: no template writes it, no test says it.
_ANSWER = "\ue000"

Messages = Sequence[Mapping[str, Any]]


def token_log(
    tokenizer: Any,
    messages: Messages,
    drawn: Mapping[int, Sequence[int]] | None = None,
    **template: Any,
) -> list[int]:
    """Token ids of ``messages`` and of the opening of the next answer.

    Args:
        drawn: what the model drew for the answers at these places of ``messages``. It stands
            for all the answer says, and its own end token for the template's.
        template: more arguments for the template.
    """
    drawn = drawn or {}
    plain = [
        {"role": "assistant", "content": _ANSWER} if place in drawn else message
        for place, message in enumerate(messages)
    ]
    text = tokenizer.apply_chat_template(
        plain, tokenize=False, add_generation_prompt=True, **template
    )
    first, *rest = text.split(_ANSWER)
    ids = encode(tokenizer, first)
    closing = tokenizer.convert_tokens_to_ids(CLOSING)
    for place, piece in zip(sorted(drawn), rest, strict=True):
        behind = encode(tokenizer, piece)
        assert behind[0] == closing
        ids += [*drawn[place], *(behind[1:] if drawn[place][-1] == closing else behind)]
    return ids


def encode(tokenizer: Any, text: str) -> list[int]:
    """Token ids of ``text`` alone."""
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids
