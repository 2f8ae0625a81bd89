"""Which tokens stay: ``select_keep``, one pure function per policy (DESIGN §3.5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.config import CachePolicy

NO_USE = 1 << 40
"""Next use of a token no future step reads."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens competing for the slots of a row, in logical order.

    ``logical``: int64 ``[L, N]`` rising; ``score``: ``[L, N]``; ``next_use``: int64 ``[L, N]``,
    the step that reads the token next, ``NO_USE`` for none.
    """

    logical: Tensor
    score: Tensor
    next_use: Tensor


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
    return _SELECTORS[policy.retention](policy, candidates)


def keep_h2o(policy: CachePolicy, candidates: Candidates) -> Tensor:
    """Sinks, recent window, then the highest cumulative attention (H2O, Zhang et al. 2023)."""
    priority = by_score(candidates.score)
    priority[forced(policy, candidates)] = -1
    return lowest(priority, policy.budget)


def keep_plan_aware(policy: CachePolicy, candidates: Candidates) -> Tensor:
    """Sinks, recent window, then tokens with a next use, soonest first and by score within one
    use, up to budget − sinks − recent − reserve; the rest by score (paper §3.1, taken to the
    limit of an infinite foresight scale)."""
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


def keep_none(policy: CachePolicy, candidates: Candidates) -> Tensor:
    """Nothing is evicted; the engine ends the session before this could be asked."""
    raise AssertionError(f"policy {policy.name} does not evict")


_SELECTORS: dict[str, Callable[[CachePolicy, Candidates], Tensor]] = {
    "h2o": keep_h2o,
    "plan_aware": keep_plan_aware,
    "none": keep_none,
}


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


def lowest(priority: Tensor, count: int) -> Tensor:
    """Indices of the ``count`` lowest priorities per layer, rising.

    Entries of equal priority are all taken or all beyond ``count``, except the ranks, which
    are distinct.
    """
    return priority.topk(count, dim=1, largest=False).indices.sort(dim=1).values
