"""PACE: what the plan reads next stays (paper §3.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.config import CachePolicy
from engine.retention import NO_USE, Candidates, by_score, forced, highest, lowest

SIGMA, LAMBDA = 1e5, 0.35
"""Scale and decay of the paper's foresight bonus."""


def keep(policy: CachePolicy, candidates: Candidates) -> Tensor:
    """Sinks, recent window, then by foresight: ``strict`` or ``additive``."""
    if policy.foresight == "additive":
        return _additive(policy, candidates)
    return _strict(policy, candidates)


def _strict(policy: CachePolicy, candidates: Candidates) -> Tensor:
    """Tokens with a next use, soonest first and by score within one use, up to
    budget − sinks − recent − reserve; the rest by score (DESIGN §3.5: the paper's rule taken to
    the limit of an infinite scale)."""
    rank = by_score(candidates.score)
    always = forced(policy, candidates)
    count = rank.shape[1]
    wanted = (candidates.next_use < NO_USE) & ~always
    order = torch.where(wanted, candidates.next_use * count + rank, torch.iinfo(torch.int64).max)
    quota = policy.budget - policy.sinks - policy.recent - policy.reserve
    first = order.argsort(dim=1)[:, :quota]
    planned = torch.zeros_like(wanted).scatter_(1, first, True) & wanted
    rank[always | planned] = -1
    return lowest(rank, policy.budget)


def _additive(policy: CachePolicy, candidates: Candidates) -> Tensor:
    """By score + β, β = σ (1/2 + 1/2 e^(−λ (s − t))) for a next use s at step t (paper, Eq. 2).

    In float64: 1e5 added in float32 would leave steps of 0.008 to the scores.
    """
    ahead = (candidates.next_use - candidates.step).clamp(min=0, max=NO_USE).double()
    bonus = SIGMA * (0.5 + 0.5 * torch.exp(-LAMBDA * ahead))
    wanted = candidates.next_use < NO_USE
    score = candidates.score.double() + torch.where(wanted, bonus, torch.zeros_like(bonus))
    return highest(policy, candidates, score)
