"""SnapKV: what the end of the prompt attends to stays (Li et al., "SnapKV: LLM Knows What You Are
Looking for Before Generation", 2024)."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import max_pool1d

from engine.config import CachePolicy
from engine.retention import Candidates, highest

OBSERVED_QUERIES = 32
NEIGHBOURS = 7


def keep(policy: CachePolicy, candidates: Candidates) -> Tensor:
    """Sinks, recent window, then the attention of the last prompt tokens, each token with the
    highest of its 7 neighbours in the cache, itself among them."""
    pooled = max_pool1d(candidates.score, NEIGHBOURS, stride=1, padding=NEIGHBOURS // 2)
    return highest(policy, candidates, pooled)
