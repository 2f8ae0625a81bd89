"""A Llama forward over dense matrices, one layer, head and key at a time in plain sight.

Rotation is complex multiplication by the angle of a position, with cos and sin from
transformers' own rotary module; everything else is written out.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding


@dataclass
class Entry:
    """A token a layer still holds: logical and physical position, raw key and value
    ``[Hkv, D]``, and the attention it has received."""

    logical: int
    physical: int
    key: Tensor
    value: Tensor
    score: Tensor


@dataclass
class LayerCache:
    """Entries of one layer in logical order."""

    entries: list[Entry] = field(default_factory=list)


class DenseLlama:
    """The weights of a transformers Llama and the angles of a rope setting."""

    def __init__(self, model: LlamaForCausalLM, positions: int, yarn_factor: float | None = None):
        config = copy.deepcopy(model.config)
        if yarn_factor is not None:
            config.rope_parameters = {
                **config.rope_parameters,
                "rope_type": "yarn",
                "factor": yarn_factor,
                "original_max_position_embeddings": config.max_position_embeddings,
            }
        self.weights = model.state_dict()
        self.layers = config.num_hidden_layers
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.dim = config.head_dim
        self.eps = config.rms_norm_eps
        rotary = LlamaRotaryEmbedding(config)
        cos, sin = rotary(torch.zeros(1), position_ids=torch.arange(positions)[None])
        half = self.dim // 2
        # one complex factor per position and pair of dimensions (the halves repeat)
        self.turn = torch.complex(cos[0, :, :half].double(), sin[0, :, :half].double())

    def rotated(self, vectors: Tensor, positions: Sequence[int]) -> Tensor:
        """``vectors`` ``[n, H, D]`` turned to their positions; pairs are (i, i + D/2)."""
        half = self.dim // 2
        pairs = torch.complex(vectors[..., :half], vectors[..., half:])
        turned = pairs * self.turn[list(positions)][:, None]
        return torch.cat((turned.real, turned.imag), -1)

    def write(
        self,
        caches: Sequence[LayerCache],
        tokens: Sequence[int],
        logical: int,
        physical: int,
        observe: int | None = None,
    ) -> Tensor:
        """Append ``tokens`` to every cache, causally attending; returns logits ``[n, V]``.

        ``observe``: the attention of the last so many of them, when they are several, replaces
        all scores; None: the attention of all is added.
        """
        x = self.weights["model.embed_tokens.weight"][list(tokens)]
        for layer, cache in enumerate(caches):
            normed = self._norm(x, layer, "input")
            x = x + self._attention(layer, cache, normed, logical, physical, observe)
            h = self._norm(x, layer, "post_attention")
            gate, up = (
                self._linear(h, layer, "mlp.gate_proj"),
                self._linear(h, layer, "mlp.up_proj"),
            )
            x = x + self._linear(gate * torch.sigmoid(gate) * up, layer, "mlp.down_proj")
        x = self._rms(x, self.weights["model.norm.weight"])
        return x @ self.weights["lm_head.weight"].T

    def _attention(
        self,
        layer: int,
        cache: LayerCache,
        x: Tensor,
        logical: int,
        physical: int,
        observe: int | None,
    ) -> Tensor:
        count, held = x.shape[0], len(cache.entries)
        q = self._linear(x, layer, "self_attn.q_proj").view(count, self.heads, self.dim)
        k = self._linear(x, layer, "self_attn.k_proj").view(count, self.kv_heads, self.dim)
        v = self._linear(x, layer, "self_attn.v_proj").view(count, self.kv_heads, self.dim)
        for i in range(count):
            zero = torch.zeros((), dtype=torch.float64)
            cache.entries.append(Entry(logical + i, physical + i, k[i], v[i], zero))
        total = held + count
        visible = torch.tensor([[j <= held + i for j in range(total)] for i in range(count)])
        places = [entry.physical for entry in cache.entries]
        all_keys = self.rotated(torch.stack([e.key for e in cache.entries]), places)
        all_values = torch.stack([e.value for e in cache.entries])
        all_queries = self.rotated(q, places[held:])
        received = torch.zeros(total, dtype=torch.float64)
        out = torch.empty(count, self.heads, self.dim, dtype=torch.float64)
        for head in range(self.heads):
            kv = head * self.kv_heads // self.heads
            keys, values, queries = all_keys[:, kv], all_values[:, kv], all_queries[:, head]
            weights = (queries @ keys.T) / math.sqrt(self.dim)
            weights = weights.masked_fill(~visible, -math.inf).softmax(-1)
            received += weights[0 if observe is None else max(0, count - observe) :].sum(0)
            out[:, head] = weights @ values
        for entry, amount in zip(cache.entries, received, strict=True):
            if observe is None:
                entry.score = entry.score + amount
            elif count > 1:
                entry.score = amount
        return self._linear(out.view(count, -1), layer, "self_attn.o_proj")

    def _linear(self, x: Tensor, layer: int, name: str) -> Tensor:
        return x @ self.weights[f"model.layers.{layer}.{name}.weight"].T

    def _norm(self, x: Tensor, layer: int, name: str) -> Tensor:
        return self._rms(x, self.weights[f"model.layers.{layer}.{name}_layernorm.weight"])

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        return weight * x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.eps)
