"""Drawing a token from logits, repeatably: the random state is a seed and a counter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.types import Sampling


@dataclass(slots=True)
class CounterRng:
    """Uniform numbers from Philox: the n-th draw depends on ``seed`` and n only, so a fork or a
    replay continues exactly."""

    seed: int
    draws: int = 0

    def uniform(self) -> float:
        """Next number in [0, 1)."""
        generator = np.random.Generator(
            np.random.Philox(key=self.seed % (1 << 64), counter=self.draws)
        )
        self.draws += 1
        return float(generator.random())


def draw(logits: Tensor, sampling: Sampling, rng: CounterRng) -> int:
    """Token id from ``logits`` ``[V]``: greedy at temperature 0, else top-p sampling.

    The draw is made in float64, so it does not depend on the device's rounding of a cumsum.
    """
    if sampling.temperature == 0:
        return int(logits.argmax())
    values = logits.double().cpu()
    # the largest becomes 0 first: divided by a tiny temperature it would be infinite
    probabilities = torch.softmax((values - values.max()) / sampling.temperature, dim=-1)
    if sampling.top_p == 1:
        return _pick(probabilities.cumsum(0), rng)
    values, order = probabilities.sort(descending=True, stable=True)
    cumulative = values.cumsum(0)
    # tokens before the one that reaches top_p, and that one
    count = int((cumulative < sampling.top_p).sum()) + 1
    return int(order[_pick(cumulative[:count], rng)])


def _pick(cumulative: Tensor, rng: CounterRng) -> int:
    """Index drawn in proportion to the steps of a rising ``cumulative`` ``[K]``."""
    point = rng.uniform() * float(cumulative[-1])
    return min(int(torch.searchsorted(cumulative, point, right=True)), len(cumulative) - 1)


def log_probabilities(logits: Tensor) -> Tensor:
    """Natural-log probabilities of ``logits`` ``[..., V]``, before temperature and top-p."""
    return torch.log_softmax(logits, dim=-1)
