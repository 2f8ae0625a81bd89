"""The measure of what renumbering costs, on a tiny model: against the stock model's own loss."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bench.renumbering import Measured, Window, arms, measure, table, windows
from engine.config import ModelProfile
from engine.pool import KVPool
from tests.engine.support import runner_for, tiny_llama

SMALL = ModelProfile(budget=160, interval=8, chunk=32, position_limit=200)
ROOMY = ModelProfile(budget=400, interval=8, chunk=32, position_limit=440)


def tokens(count: int, seed: int = 0) -> tuple[int, ...]:
    found = torch.randint(0, 256, (count,), generator=torch.Generator().manual_seed(seed))
    return tuple(found.tolist())


def run(profile: ModelProfile, prefix: int, length: int) -> dict[str, Measured]:
    runner = runner_for(tiny_llama())
    pool = KVPool(runner.shape, 1 << 28, profile.chunk)
    window = Window("x.py", tokens(length))
    policies = arms(profile, runner.model_range)
    return {
        name: measure(runner, policy, pool, window, prefix) for name, policy in policies.items()
    }


def test_without_eviction_both_arms_are_the_stock_models_loss() -> None:
    found = run(ROOMY, prefix=100, length=150)
    window = torch.tensor([tokens(150)])
    with torch.inference_mode():
        logits = tiny_llama()(window).logits
    loss = float(nn.functional.cross_entropy(logits[0, 99:-1], window[0, 100:]))
    for measured in found.values():
        assert measured.nll == pytest.approx(loss, abs=1e-6)  # log-probabilities are float32
        assert measured.renumbers == 0


def test_the_arms_differ_by_renumbering_only() -> None:
    found = run(SMALL, prefix=320, length=400)
    # L = 160 + 8 + 32: six chunks of 32 fit, every other of the ten makes the row be renumbered
    assert found["renumbered"].renumbers_before == 4
    assert found["renumbered"].renumbers > 4
    assert found["as-written"].renumbers == 0
    assert found["as-written"].nll != found["renumbered"].nll


def test_windows_are_drawn_from_the_seed_each_of_another_file() -> None:
    def encode(text: str) -> list[int]:
        return list(text.encode())

    first = list(windows(encode, 5, 1000, seed=3))
    assert first == list(windows(encode, 5, 1000, seed=3))
    assert first != list(windows(encode, 5, 1000, seed=4))
    assert len({window.name for window in first}) == 5
    assert all(len(window.tokens) == 1000 for window in first)
    with pytest.raises(ValueError, match="has only"):
        list(windows(encode, 5, 10_000_000, seed=3))


def test_the_table_says_the_mean_and_its_interval() -> None:
    rows = [
        (
            Window(f"{n}.py", ()),
            {"as-written": Measured(2.0, 0, 0), "renumbered": Measured(b, 9, 10)},
        )
        for n, b in enumerate((2.01, 2.03, 1.99, 2.01))
    ]
    text = table(rows)
    assert "| 1.py | 9, 1 | 2.0000 | 2.0300 | +0.0300 |" in text
    assert "Mean +0.0100 nats" in text
    low, high = map(float, text.split("[")[1].split("]")[0].split(", "))
    assert -0.01 < low < 0.01 < high < 0.03
