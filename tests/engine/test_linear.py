"""The products by numpy's BLAS compute what torch's compute, without a second copy of a weight."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from engine.linear import BlasLinear, batched_product, replace_linears


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("tokens", [1, 2, 33, 100])
def test_equals_the_product_in_float64(tokens: int, bias: bool, shared: bool) -> None:
    torch.manual_seed(0)
    stock = nn.Linear(48, 80, bias=bias).requires_grad_(False)
    # every other token of a wider tensor: not contiguous
    x = torch.randn(1, tokens * 2, 48)[:, ::2]
    expected = torch.einsum("btk,nk->btn", x.double(), stock.weight.double())
    if bias:
        expected = expected + stock.bias.double()
    out = BlasLinear(stock, shared)(x)
    assert out.shape == (1, tokens, 80) and out.is_contiguous()
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


def test_replaces_every_plain_linear_and_keeps_a_tied_weight_tied() -> None:
    class Special(nn.Linear):
        """A layer with behaviour of its own."""

    embedding, head, plain = nn.Embedding(6, 4), nn.Linear(4, 6), nn.Linear(4, 4)
    head.weight = embedding.weight
    model = nn.Sequential(embedding, plain, nn.Sequential(head), Special(4, 4))
    model.requires_grad_(False)
    assert replace_linears(model) == 2
    assert isinstance(model[1], BlasLinear) and isinstance(model[2][0], BlasLinear)
    assert isinstance(model[3], Special)
    assert model[2][0].weight.data_ptr() == embedding.weight.data_ptr()
    assert plain.weight is None  # the old one is free


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_batched_product_equals_the_product_in_float64(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a, keys = torch.randn(3, 7, 8, dtype=dtype), torch.randn(3, 20, 8, dtype=dtype)
    out = torch.empty(3, 7, 11, dtype=dtype)
    batched_product(a, keys[:, :11].transpose(1, 2), out, 0.3)
    expected = 0.3 * torch.einsum("hqd,hkd->hqk", a.double(), keys[:, :11].double())
    bound = 0.05 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(out.double(), expected, atol=bound, rtol=bound)
