"""Tiny random models of the families that PACE serves, exact to the last bits of float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForCausalLM

from engine.rope import Rotation
from tests.engine.support import RANGE

SMALL: Mapping[str, Any] = {
    "vocab_size": 261,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": RANGE,
    "bos_token_id": 257,
    "eos_token_id": 258,
    "pad_token_id": 256,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
PARTIAL = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "norm_topk_prob": True,
    "mlp_only_layers": [0],
}


HALVES = Rotation()


class Float64Only(TorchFunctionMode):
    """Takes a model's detours through float32 (norms, softmax, routers) in float64."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if args and isinstance(args[0], Tensor) and args[0].dtype == torch.float64:
            if func is Tensor.float:
                return args[0]
            args = tuple(_wider(value) for value in args)
            kwargs = {name: _wider(value) for name, value in kwargs.items()}
        return func(*args, **kwargs)


def _wider(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


@dataclass(frozen=True)
class Family:
    """A model of transformers' ``model_type``.

    ``dims``, ``rotation``: what its code does, read by a person.
    """

    model_type: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    dims: int = 8
    rotation: Rotation = HALVES
    kv_heads: int = 2
    head_dim: int = 8

    def model(
        self, dtype: torch.dtype = torch.float64, attention: str = "sdpa", seed: int = 0
    ) -> Any:
        """A stock model: the same weights for the same seed."""
        config = AutoConfig.for_model(self.model_type, **{**SMALL, **self.settings})
        with torch.random.fork_rng(devices=[]):
            model: Any = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
        randomize(model, seed)
        model.eval().requires_grad_(False)
        if dtype == torch.float64:
            make_exact(model)
            if hasattr(config, "num_experts"):
                model.set_experts_implementation("eager")  # the default knows no float64
        else:
            model.to(dtype)
        return model


def randomize(model: Any, seed: int) -> None:
    """Large random weights: logits far apart, attention far from uniform, norms and biases that
    matter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * 0.3 if parameter.dim() > 1 else parameter + noise * 0.1)


def make_exact(model: Any) -> None:
    """Compute ``model`` in float64 all the way, but for the angles: they are float32 in stock
    models of every dtype."""
    model.double()
    model.base_model.rotary_emb.float()
    own = model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        with Float64Only():
            return own(*args, **kwargs)

    model.forward = forward


FAMILIES = {
    "llama": Family("llama"),
    "llama-yarn": Family(
        "llama", {"rope_parameters": {**YARN, "original_max_position_embeddings": RANGE // 4}}
    ),
    "llama3": Family(
        "llama", {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 128}}
    ),
    "mistral": Family("mistral", {"sliding_window": None, "head_dim": 8}),
    "qwen2": Family("qwen2"),
    "qwen3": Family("qwen3", {"head_dim": 16}, dims=16, head_dim=16),
    "phi3": Family("phi3", {"rope_parameters": PARTIAL}, dims=6),
    "gpt-neox": Family("gpt_neox", {"rope_parameters": PARTIAL}, dims=6, kv_heads=4),
    "glm": Family(
        "glm",
        {"head_dim": 16, "partial_rotary_factor": 0.5},
        rotation=Rotation(neighbours=True, halves=True),
        head_dim=16,
    ),
    "cohere": Family("cohere", rotation=Rotation(neighbours=True)),
    "smollm3": Family(
        "smollm3", {"no_rope_layers": [1, 0, 1]}, rotation=Rotation(unturned=frozenset({1}))
    ),
    "qwen3-moe": Family("qwen3_moe", {"head_dim": 8, **EXPERTS}),
}
