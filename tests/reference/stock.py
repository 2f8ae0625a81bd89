"""Any stock transformers model on pruned caches, by nothing but its own code.

A layer's cache holds what its attention module was given for each kept token. Every write gives
the module all of that again, with the physical positions and a mask written out: the model's code
projects, rotates and attends, and the answers of the new tokens count.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tests.reference.llama import Entry, LayerCache

Attention = Callable[..., tuple[Tensor, Tensor]]


def replace_attention(model: Any, attend: Attention) -> int:
    """Have ``attend(layer, own, …)`` called in the place of each attention module's ``own``
    forward; returns the number of layers."""
    assert model.config._attn_implementation == "eager"
    attentions = [m for m in model.modules() if type(m).__name__.endswith("Attention")]
    assert len(attentions) == model.config.num_hidden_layers
    for layer, module in enumerate(attentions):
        module.forward = functools.partial(attend, layer, module.forward)
    return len(attentions)


class StockModel:
    """Takes a model with eager attention, which returns its weights, and changes it for good."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.layers = replace_attention(model, self._attend)
        self._rotary = model.base_model.rotary_emb
        self._caches: Sequence[LayerCache] = ()
        self._first = (0, 0)
        self._observe: int | None = None

    def write(
        self,
        caches: Sequence[LayerCache],
        tokens: Sequence[int],
        logical: int,
        physical: int,
        observe: int | None = None,
    ) -> Tensor:
        """As ``DenseLlama.write``: logits ``[n, V]``, the caches with the tokens and scores."""
        self._caches, self._first, self._observe = caches, (logical, physical), observe
        places = torch.arange(physical, physical + len(tokens))[None]
        with torch.inference_mode():
            ids = torch.tensor([list(tokens)])
            logits: Tensor = self.model(ids, position_ids=places, use_cache=False).logits[0]
        return logits

    def _attend(
        self, layer: int, own: Attention, *args: Any, **settings: Any
    ) -> tuple[Tensor, Tensor]:
        new = args[0] if args else settings.pop("hidden_states")
        cache, count = self._caches[layer], new.shape[1]
        logical, physical = self._first
        for i in range(count):
            zero = torch.zeros((), dtype=torch.float64)
            cache.entries.append(Entry(logical + i, physical + i, new[0, i], new[0, i], zero))
        total, held = len(cache.entries), len(cache.entries) - count
        inputs = torch.stack([entry.key for entry in cache.entries])[None]
        places = torch.tensor([[entry.physical for entry in cache.entries]])
        later = [[j > i for j in range(total)] for i in range(total)]
        mask = torch.zeros(1, 1, total, total, dtype=inputs.dtype)
        settings |= {
            "attention_mask": mask.masked_fill(torch.tensor(later), -math.inf),
            "position_ids": places,
            "position_embeddings": self._rotary(inputs, position_ids=places),
        }
        out, weights = own(hidden_states=inputs, **settings)
        seen = held if self._observe is None else held + max(0, count - self._observe)
        received = weights[0, :, seen:].sum(dim=(0, 1))
        for entry, amount in zip(cache.entries, received, strict=True):
            if self._observe is None:
                entry.score = entry.score + amount
            elif count > 1:
                entry.score = amount
        return out[:, held:], weights
