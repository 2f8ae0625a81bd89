"""The linear layers for few tokens compute what ``nn.Linear`` computes, with its own weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from engine.linear import FEW_TOKENS, FewTokenLinear, replace_linears


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tokens", [1, 2, 7, FEW_TOKENS, FEW_TOKENS + 1, 100])
def test_equals_the_product_in_float64(tokens: int, bias: bool) -> None:
    torch.manual_seed(0)
    stock = nn.Linear(48, 80, bias=bias)
    x = torch.randn(1, tokens, 48)
    expected = torch.einsum("btk,nk->btn", x.double(), stock.weight.double())
    if bias:
        expected = expected + stock.bias.double()
    out = FewTokenLinear(stock)(x)
    assert out.shape == (1, tokens, 80) and out.is_contiguous()
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


def test_replaces_every_plain_linear_and_shares_its_weights() -> None:
    class Special(nn.Linear):
        """A layer with behaviour of its own."""

    head = nn.Linear(4, 4)
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(head), Special(4, 4))
    assert replace_linears(model) == 2
    assert isinstance(model[0], FewTokenLinear) and isinstance(model[1][0], FewTokenLinear)
    assert isinstance(model[2], Special)
    assert model[1][0].weight is head.weight
