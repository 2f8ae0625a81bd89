"""Which tokens stay: ``select_keep`` (DESIGN §3.5), and what the policies build on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.config import CachePolicy
from engine.policies import keep_function

NO_USE = 1 << 40
"""Next use of a token no future step reads."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens competing for the slots of a row, in logical order.

    ``logical``: int64 ``[L, N]`` rising; ``score``: ``[L, N]``; ``next_use``: int64 ``[L, N]``,
    the step that reads the token next, ``NO_USE`` for none; ``step``: the current one.
    """

    logical: Tensor
    score: Tensor
    next_use: Tensor
    step: int = 0


def select_keep(policy: CachePolicy, candidates: Candidates) -> Tensor:
    """Indices of the tokens to keep.

    Args:
        policy: gives retention, budget, sinks, recent window and reserve (tokens).
        candidates: N tokens per layer.

    Returns:
        int64 ``[L, min(budget, N)]``, rising per layer.
    """
    count = candidates.logical.shape[1]
    if count <= policy.budget:
        layers = candidates.logical.shape[0]
        return torch.arange(count, device=candidates.logical.device).expand(layers, count)
    keep: Tensor = keep_function(policy.retention)(policy, candidates)
    return keep


def forced(policy: CachePolicy, candidates: Candidates) -> Tensor:
    """Bool ``[L, N]``: attention sinks (first logical positions) and the recent window."""
    always = candidates.logical < policy.sinks
    if policy.recent:
        always[:, -policy.recent :] = True
    return always


def by_score(score: Tensor) -> Tensor:
    """Rank per layer, int64 ``[L, N]``: 0 is the highest score, the newer token wins a tie."""
    newest_first = score.flip(1)
    order = newest_first.argsort(dim=1, descending=True, stable=True)
    rank = torch.empty_like(order)
    positions = torch.arange(score.shape[1], device=score.device).expand_as(order)
    return rank.scatter_(1, order, positions).flip(1)


def highest(policy: CachePolicy, candidates: Candidates, score: Tensor) -> Tensor:
    """Indices ``[L, budget]`` of what is forced and then of the highest ``score`` ``[L, N]``."""
    rank = by_score(score)
    rank[forced(policy, candidates)] = -1
    return lowest(rank, policy.budget)


def lowest(priority: Tensor, count: int) -> Tensor:
    """Indices of the ``count`` lowest priorities per layer, rising.

    Entries of equal priority are all taken or all beyond ``count``, except the ranks, which
    are distinct.
    """
    return priority.topk(count, dim=1, largest=False).indices.sort(dim=1).values
