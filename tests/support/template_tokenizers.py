"""Tokenizers with the special tokens of real models, for their chat templates.

The real ones are not part of the checkout. These agree with them where templates are concerned:
each special token is one token, byte-level vocabularies add no space, and the SentencePiece one
turns a space into ``▁`` and puts one before the very first text only.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from engine.template_files import shipped_template
from tests.support.protocol_model import byte_tokenizer

QWEN = ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")
QWEN_THINKS = (*QWEN, "<think>", "</think>")
MISTRAL_V3 = (
    *("<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
)
MISTRAL_V7 = (*MISTRAL_V3, "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]")
LLAMA = (
    *("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|eot_id|>", "<|eom_id|>", "<|python_tag|>"),
)
ENDS = {QWEN: QWEN[:2], QWEN_THINKS: QWEN[:2], LLAMA: (LLAMA[0], LLAMA[3])}
"""Beginning and end of a text; Mistral's are ``<s>`` and ``</s>``."""


# shipped template → the tokens of its models
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
SENTENCEPIECE = ("mistral-v3", "mistral-v7")


def with_tokens(tokenizer: Any, tokens: tuple[str, ...], template: Any = None) -> Any:
    """``tokenizer`` with ``tokens`` added, each one token."""
    tokenizer.add_tokens([AddedToken(t, special=True, normalized=False) for t in tokens])
    tokenizer.bos_token, tokenizer.eos_token = ENDS.get(tokens, ("<s>", "</s>"))
    tokenizer.chat_template = template
    return tokenizer


def byte_level(tokens: tuple[str, ...], template: Any = None) -> Any:
    """One byte is one token."""
    return with_tokens(byte_tokenizer(), tokens, template)


def sentencepiece(tokens: tuple[str, ...], template: Any = None) -> Any:
    """SentencePiece as Mistral's: words from ``▁``, bytes for the rest."""
    characters = ["▁", *(chr(code) for code in range(0x21, 0x7F))]
    merges = [("▁", c) for c in characters[1:]] + [("▁", "▁"), ("a", "b"), ("▁a", "b")]
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *characters]
    pieces += ["".join(pair) for pair in merges]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return with_tokens(
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            unk_token="<unk>",
            clean_up_tokenization_spaces=False,
            model_max_length=1_000_000_000,
        ),
        tokens,
        template,
    )


@cache
def tokenizer_for(name: str) -> Any:
    """A tokenizer with the shipped template ``name``."""
    make = sentencepiece if name in SENTENCEPIECE else byte_level
    return make(TOKENS[name], shipped_template(name).text)


def rendered(tokenizer: Any, messages: Any, tools: Any = None, answer: bool = False) -> str:
    """What transformers makes of a conversation in the form of the API."""
    text: str = tokenizer.apply_chat_template(
        messages, tools=tools, tokenize=False, add_generation_prompt=answer
    )
    return text


def said(role: str, content: str, **more: Any) -> dict[str, Any]:
    """A message."""
    return {"role": role, "content": content, **more}


def call(call_id: str, **arguments: Any) -> dict[str, Any]:
    """A call of the tool ``f``."""
    return {"id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments}}
