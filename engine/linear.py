"""Matrix products of a CPU model in float32, by numpy's BLAS.

On the CPUs measured, the OpenBLAS that numpy brings multiplies faster than torch's own library:
by 5–60 % at 512 tokens, about 3 times at one token (docs/decisions/0007). numpy works on the
tensors' own memory, so nothing is copied.
"""

from __future__ import annotations

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor, nn


def set_threads(count: int) -> None:
    """Use ``count`` CPU threads for the products of torch and of numpy, in the whole process."""
    torch.set_num_threads(count)
    threadpool_limits(limits=count, user_api="blas")


class BlasLinear(nn.Module):
    """``nn.Linear`` on a CPU in float32.

    ``weight`` is ``[in_features, out_features]``: stored the other way round, a product with few
    tokens reads it in order. A weight that another module shares (tied embeddings) stays as it
    is, and ``weight`` is a view of it.
    """

    def __init__(self, linear: nn.Linear, shared: bool) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        turned = linear.weight.detach().t()
        weight = turned if shared else turned.contiguous()
        self.register_buffer("weight", weight, persistent=False)
        self.bias = linear.bias
        self._array = weight.numpy()

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in_features]`` → ``[..., out_features]``."""
        rows = x.reshape(-1, self.in_features)
        out = x.new_empty(rows.shape[0], self.out_features)
        np.matmul(rows.numpy(), self._array, out=out.numpy())
        if self.bias is not None:
            out += self.bias
        return out.view(*x.shape[:-1], self.out_features)


def replace_linears(model: nn.Module) -> int:
    """Put ``BlasLinear`` in the place of every plain ``nn.Linear``; returns how many.

    ``model`` must be on a CPU, in float32, and not be trained.
    """
    seen: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            seen[id(parameter)] = seen.get(id(parameter), 0) + 1
    places = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear
    ]
    for parent, name, linear in places:
        setattr(parent, name, BlasLinear(linear, shared=seen[id(linear.weight)] > 1))
        linear.weight = None  # type: ignore[assignment]  # free it before the next is turned
    return len(places)


def batched_product(a: Tensor, b: Tensor, out: Tensor, scale: float = 1.0) -> None:
    """``out`` = ``scale`` · a b for every head: ``[H, n, k]`` × ``[H, k, m]`` → ``[H, n, m]``.

    ``a`` and ``out`` are contiguous; ``b`` may be a transposed view.
    """
    if out.device.type == "cpu" and out.dtype == torch.float32:
        scaled = a if scale == 1.0 else a * scale
        np.matmul(scaled.numpy(), b.numpy(), out=out.numpy())
    else:
        # beta = 0: the contents of ``out`` are ignored
        torch.baddbmm(out, a, b, beta=0, alpha=scale, out=out)
