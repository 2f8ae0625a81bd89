"""Linear layers for a handful of tokens on a CPU.

For 2–32 tokens the library's x Wᵀ takes about twice as long as W xᵀ (float32, MKL; numbers in
docs/decisions). Decode batches are that small, so the linear layers of a model on a CPU are
replaced by ones that choose the order of the product; their weights are shared, not copied.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

FEW_TOKENS = 32


class FewTokenLinear(nn.Module):
    """``nn.Linear`` with the faster product for up to ``FEW_TOKENS`` tokens."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.weight = linear.weight
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in_features]`` → ``[..., out_features]``."""
        tokens = x.numel() // self.in_features
        if not 1 < tokens <= FEW_TOKENS:
            return functional.linear(x, self.weight, self.bias)
        product = torch.mm(self.weight, x.reshape(tokens, self.in_features).t()).t()
        out = (product if self.bias is None else product + self.bias).contiguous()
        return out.view(*x.shape[:-1], self.out_features)


def replace_linears(model: nn.Module) -> int:
    """Put ``FewTokenLinear`` in the place of every plain ``nn.Linear``; returns how many."""
    places = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear
    ]
    for parent, name, linear in places:
        setattr(parent, name, FewTokenLinear(linear))
    return len(places)
