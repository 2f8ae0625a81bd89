"""H2O: what was attended to most stays (Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient
Generative Inference of Large Language Models", 2023)."""

from __future__ import annotations

from torch import Tensor

from engine.config import CachePolicy
from engine.retention import Candidates, highest


def keep(policy: CachePolicy, candidates: Candidates) -> Tensor:
    """Sinks, recent window, then the highest cumulative attention."""
    return highest(policy, candidates, candidates.score)
