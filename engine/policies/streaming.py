"""StreamingLLM: attention sinks and the newest tokens (Xiao et al., "Efficient Streaming Language
Models with Attention Sinks", 2023). Its preset numbers positions within the cache."""

from __future__ import annotations

from torch import Tensor

from engine.config import CachePolicy
from engine.retention import Candidates, highest


def keep(policy: CachePolicy, candidates: Candidates) -> Tensor:
    """Sinks, then the newest up to the budget."""
    return highest(policy, candidates, candidates.logical)
