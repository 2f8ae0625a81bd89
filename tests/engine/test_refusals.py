"""DESIGN §6: families whose attention PACE does not compute are refused, each with its reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from engine.errors import ModelError
from tests.engine.support import runner_for

SMALL = {
    "vocab_size": 261,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "bos_token_id": 257,
    "eos_token_id": 258,
    "pad_token_id": 256,
}
FULL = {"layer_types": ["full_attention"] * 2}
LATENT = {
    "num_key_value_heads": 4,
    "head_dim": 4,
    "q_lora_rank": None,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "first_k_dense_replace": 2,
}
NO_ROTARY = "the model has no single rotary embedding.*learned positions, ALiBi"
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("gemma2", {}, "layers other than full attention are not supported"),
    ("gemma2", FULL, r"capped attention logits \(softcap\) is not supported"),
    ("gpt_oss", {**FULL, "num_local_experts": 2, "num_experts_per_tok": 1}, "attention sinks"),
    ("gemma3_text", {}, NO_ROTARY),
    ("mistral", {"sliding_window": 64}, r"sliding-window attention \(64 tokens\)"),
    ("bloom", {"n_layer": 1, "n_head": 4}, NO_ROTARY),
    ("opt", {"ffn_dim": 48, "word_embed_proj_dim": 32}, NO_ROTARY),
    ("gptj", {"n_embd": 32, "n_layer": 1, "n_head": 4, "rotary_dim": 4}, NO_ROTARY),
    ("hunyuan_v1_dense", {}, "layer 0 turns its queries and keys .* not supported .*applied last"),
    ("deepseek_v3", LATENT, "values of another shape than keys are not supported"),
]


@pytest.mark.parametrize(
    ("model_type", "settings", "reason"), REFUSED, ids=[f"{m}-{r[:20]}" for m, _, r in REFUSED]
)
def test_it_is_refused_with_its_reason(
    model_type: str, settings: dict[str, Any], reason: str
) -> None:
    config = AutoConfig.for_model(model_type, **{**SMALL, **settings})
    with torch.random.fork_rng(devices=[]):
        model: Any = AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(ModelError, match=f"^{model_type}: .*{reason}"):
        runner_for(model)
