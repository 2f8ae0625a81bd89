"""The protocol model: a tiny Llama with a byte tokenizer, to run the real engine in fast tests.

4 layers, hidden size 64, 4 query heads on 2 KV heads, float32, seeded weights. One byte is one
token, so lengths in tests are plain to see. The chat template is ChatML, prefix-stable, and
takes system, user, assistant (with tool calls) and tool messages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from engine.catalog import write_profile
from engine.config import ModelProfile

SEED = 20_260
PROFILE = ModelProfile(budget=256, interval=16, chunk=64, position_limit=512, dtype="float32")
# Ids 256, 257, … after the 256 bytes.
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")

CHAT_TEMPLATE = """\
{%- if tools %}{{- '<|im_start|>system\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\n' }}{% endif %}
{%- for tool in tools %}{{- (tool | tojson) + '\n' }}{% endfor %}
{{- '<|im_end|>\n' }}{% endif %}
{%- for message in messages %}
{%- if not (tools and loop.first and message.role == 'system') %}
{{- '<|im_start|>' + message.role + '\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>' + (call.function | tojson) + '</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}
"""


def make_protocol_model(path: Path, profile: ModelProfile = PROFILE, **changes: Any) -> Path:
    """Write the protocol model, with ``changes`` to its configuration, as a transformers folder
    with a PACE profile; return ``path``.

    Deterministic: the same weights on every machine.
    """
    settings: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    tokenizer = byte_tokenizer()
    generator_state = torch.get_rng_state()
    torch.manual_seed(SEED)
    try:
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer),
                **settings | changes,
                max_position_embeddings=8192,
                # Large weights spread the logits, so that greedy answers have no near ties.
                initializer_range=0.2,
                tie_word_embeddings=False,
                bos_token_id=tokenizer.convert_tokens_to_ids("<|im_start|>"),
                eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
                pad_token_id=tokenizer.convert_tokens_to_ids("<|endoftext|>"),
            )
        ).float()
    finally:
        torch.set_rng_state(generator_state)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    write_profile(path, profile, name="protocol")
    return path


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A fast tokenizer whose ids 0–255 are the bytes of UTF-8; special tokens follow."""
    tokenizer = Tokenizer(models.BPE(vocab=_byte_vocabulary(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in SPECIAL_TOKENS[:3]])
    tokenizer.add_tokens(
        [AddedToken(t, special=False, normalized=False) for t in SPECIAL_TOKENS[3:]]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=1_000_000_000,
    )


def _byte_vocabulary() -> dict[str, int]:
    """The printable character that byte-level tokenizers use for each byte → the byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    stand_ins = {byte: chr(byte) for byte in printable}
    stand_ins |= {byte: chr(256 + n) for n, byte in enumerate(others)}
    return {character: byte for byte, character in stand_ins.items()}
