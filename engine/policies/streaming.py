"""StreamingLLM: attention sinks and the newest tokens (Xiao et al., "Efficient Streaming Language
Models with Attention Sinks", 2023). Its preset numbers positions within the cache."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.config import CachePolicy
from engine.retention import Candidates, forced, lowest


def keep(policy: CachePolicy, candidates: Candidates) -> Tensor:
    """Sinks, then the newest up to the budget."""
    count = candidates.logical.shape[1]
    age = torch.arange(count - 1, -1, -1, device=candidates.logical.device)
    priority = age.expand_as(candidates.logical).clone()
    priority[forced(policy, candidates)] = -1
    return lowest(priority, policy.budget)
