"""The protocol model must be what the tests that use it take it for."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.catalog import load_profile
from engine.config import PolicyConfig
from tests.support.protocol_model import PROFILE, byte_tokenizer, make_protocol_model

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
    {"role": "tool", "content": "one", "tool_call_id": "1"},
    {"role": "tool", "content": "two", "tool_call_id": "1"},
    {"role": "assistant", "content": "ok"},
    {"role": "user", "content": "bye"},
]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_each_byte_is_one_token(text: str) -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode(text)
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text


def test_special_tokens_are_single_ids() -> None:
    tokenizer = byte_tokenizer()
    assert tokenizer.encode("a<|im_start|>b<|im_end|><|endoftext|>") == [97, 257, 98, 258, 256]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (257, 258)


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("start", [0, 1], ids=["system", "no-system"])
def test_template_is_prefix_stable(tools: list[dict[str, Any]] | None, start: int) -> None:
    tokenizer = byte_tokenizer()
    chat, previous = CHAT[start:], ""
    for n in range(1, len(chat) + 1):
        text = tokenizer.apply_chat_template(chat[:n], tools=tools, tokenize=False)
        assert text.startswith(previous) and len(text) > len(previous)
        previous = text
    prompt = tokenizer.apply_chat_template(
        chat, tools=tools, tokenize=False, add_generation_prompt=True
    )
    assert prompt == previous + "<|im_start|>assistant\n"


def test_folder_loads_with_its_profile(protocol_model: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(protocol_model)
    tokenizer = AutoTokenizer.from_pretrained(protocol_model)
    assert model.config.num_hidden_layers == 4
    assert model.config.vocab_size == len(tokenizer) == 261
    assert load_profile(protocol_model) == PROFILE
    policy = PolicyConfig(name="pace", retention="plan_aware").resolve(PROFILE, 8192)
    assert policy.position_limit == 512


def test_weights_are_the_same_each_time(tmp_path: Path, protocol_model: Path) -> None:
    torch.manual_seed(1)  # another state of the generator than at the first build
    again = make_protocol_model(tmp_path / "again")
    first, second = (
        hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
        for folder in (protocol_model, again)
    )
    assert first == second


def test_answers_depend_on_the_prompt_and_are_not_degenerate(protocol_model: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(protocol_model).eval()
    prompt = torch.tensor([list(b"a long enough prompt, with one byte that changes")])
    changed = prompt.clone()
    changed[0, 3] += 1
    with torch.inference_mode():
        difference = (model(prompt).logits[0, -1] - model(changed).logits[0, -1]).abs().max()
        answer = model.generate(prompt, max_new_tokens=40, do_sample=False, eos_token_id=None)
    assert difference > 0.1
    assert len(set(answer[0, prompt.shape[1] :].tolist())) > 15
