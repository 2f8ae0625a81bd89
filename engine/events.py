"""What the ledger says of an eviction, and which messages are resident after a step.

The cost is that of the candidates and of the messages they belong to, never that of the session:
messages are found by bisection from one touched token to the next.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from engine.plan import MessageSpan, next_use, step_messages
from engine.retention import NO_USE, Candidates, forced
from engine.row import Row
from engine.state import SessionState

EVICTION_SPANS = 24
RESIDENCY_SPANS = 64
"""Most messages one event lists; the others are summed up in ``more_spans``."""
RENUMBER_RUNS = 64


def eviction_data(
    state: SessionState, candidates: Candidates, keep: Tensor, written: int
) -> dict[str, Any]:
    """Data of the eviction that leaves ``keep`` ``[L, K]`` (indices) of ``candidates`` ``[L, N]``.

    Counts are tokens. The class of a token is the first that fits of sink, recent (the newest),
    protected (some step will read it) and other; pairs are [minimum, maximum] over layers, lists
    have an entry per layer.

    Args:
        written: tokens of the session that have been written.
    """
    logical, score = candidates.logical, candidates.score
    total, kept = logical.shape[1], keep.shape[1]
    stays = torch.zeros_like(logical, dtype=torch.bool).scatter_(1, keep, True)
    goes = ~stays
    planned = candidates.next_use < NO_USE
    always = forced(state.policy, candidates)
    reserved = planned | always
    low, high = float("inf"), float("-inf")
    lost_planned = (planned & goes).sum(dim=1)
    kept_planned = (stays & planned & ~always).sum(dim=1)
    kept_always = (stays & always).sum(dim=1)
    sinks = (logical[:, : state.policy.sinks] < state.policy.sinks).sum(dim=1)
    return {
        "at": written,
        "candidates": total,
        "kept": kept,
        "evicted": total - kept,
        "displaced": int(lost_planned.max()),
        "kept_by_class": {
            "sink": _range(sinks),
            "recent": _range(kept_always - sinks),
            "protected": _range(kept_planned),
            "other": _range(kept - kept_always - kept_planned),
        },
        "lost_by_class": {
            "protected": _range(lost_planned),
            "other": _range(total - kept - lost_planned),
        },
        "kept_protected": kept_planned.tolist(),
        "lowest_kept_score": _finite(score.masked_fill(goes | reserved, low).amin(dim=1)),
        "highest_lost_score": _finite(score.masked_fill(stays, high).amax(dim=1)),
        "highest_unprotected_score": _finite(score.masked_fill(reserved, high).amax(dim=1)),
        **_lost_spans(state.messages, candidates, goes, total - kept),
    }


def _lost_spans(
    messages: Sequence[MessageSpan], candidates: Candidates, goes: Tensor, lost: int
) -> dict[str, Any]:
    """Per message that loses tokens how many in each layer, and the highest score among them."""
    logical = candidates.logical
    layers = logical.shape[0]
    # every layer loses the same number
    positions = logical[goes].view(layers, lost)
    touched, counts, span_of = _per_span(messages, positions)
    scores = candidates.score[goes]
    highest = scores.new_full((len(touched),), float("-inf"))
    highest.scatter_reduce_(0, span_of.flatten(), scores, "amax")
    chosen = list(range(len(touched)))
    if len(touched) > EVICTION_SPANS:  # first those that lose planned tokens, then most tokens
        planned = (candidates.next_use[goes] < NO_USE).to(torch.int64)
        of_plan = torch.zeros_like(counts[0]).scatter_add_(0, span_of.flatten(), planned)
        chosen = _largest(of_plan * (layers * lost + 1) + counts.sum(dim=0), EVICTION_SPANS)
    rest = counts.sum(dim=1) - counts[:, chosen].sum(dim=1)
    return {
        "spans": {
            "message": [touched[i] for i in chosen],
            "lost": counts[:, chosen].T.tolist(),
            "highest_lost_score": _finite(highest[chosen]),
        },
        "more_spans": {"spans": len(touched) - len(chosen), "lost": _range(rest)},
    }


def residency_data(state: SessionState) -> dict[str, Any]:
    """Data of a step's residency event: the messages that have resident tokens.

    ``spans`` holds parallel lists: ``message`` (index), ``tokens`` written of it, and ``least`` and
    ``most`` resident tokens over layers. ``more_spans`` sums up those beyond the most that an event
    lists; what the plan still reads is listed first, then what holds most.
    """
    row = state.active_row()
    touched, counts, _ = _per_span(state.messages, row.logical[:, : row.length])
    chosen = list(range(len(touched)))
    if len(touched) > RESIDENCY_SPANS:
        read = {interval.start for interval in state.protected(state.step_at(state.written - 1))}
        of_plan = torch.tensor([state.messages[i].start in read for i in touched])
        bonus = of_plan.to(counts.device, torch.int64) * (row.length + 1)
        chosen = _largest(counts.amax(dim=0) + bonus, RESIDENCY_SPANS)
    spans = [state.messages[touched[i]] for i in chosen]
    rest = counts.sum(dim=1) - counts[:, chosen].sum(dim=1)
    listed = counts[:, chosen]
    return {
        "at": state.written,
        "resident": row.length,
        "spans": {
            "message": [touched[i] for i in chosen],
            "tokens": [min(span.end, state.written) - span.start for span in spans],
            "least": listed.amin(dim=0).tolist(),
            "most": listed.amax(dim=0).tolist(),
        },
        "more_spans": {"spans": len(touched) - len(chosen), "resident": _range(rest)},
    }


def renumber_runs(row: Row) -> dict[str, list[int]]:
    """Where a row's slots, which a renumber numbers from 0, lie before it.

    At most ``RENUMBER_RUNS`` runs, cut where the positions leave the largest gaps: of each the
    first ``new`` position and the ``count`` of slots, and the old positions of its first and last
    slot, lowest and highest over layers. Parallel lists.
    """
    n = row.length
    old = row.physical[:, :n]
    least, most = torch.stack((old.amin(dim=0), old.amax(dim=0))).cpu()
    gaps = least.diff() - 1
    largest = gaps.topk(min(RENUMBER_RUNS - 1, len(gaps))).indices
    cuts = largest[gaps[largest] > 0].sort().values + 1
    first = torch.cat((cuts.new_zeros(1), cuts))
    end = torch.cat((cuts, cuts.new_full((1,), n)))
    return {
        "new": first.tolist(),
        "count": (end - first).tolist(),
        "old_first": least[first].tolist(),
        "old_last": most[end - 1].tolist(),
    }


def composition_data(state: SessionState, logical: Tensor, score: Tensor) -> dict[str, Any]:
    """What a step's query sees (paper, section 5.7): candidates ``[L, N]``, the newest its own.

    ``sink``, ``needed`` (what the plan says this step reads), ``recent`` (the recent window and the
    step's own tokens) and ``other_old`` are tokens, means over layers; each token is of the first
    class that fits. ``highest_unprotected_score``: the highest score, over layers, of a token that
    is neither planned for any step nor sink nor in the recent window; None without such a token.
    """
    layers, step = logical.shape[0], state.step
    own = state.messages[step_messages(state.steps, state.messages, step).start].start
    policy = state.policy
    newest = torch.zeros_like(logical, dtype=torch.bool)
    if policy.recent:
        newest[:, -policy.recent :] = True
    classes = {
        "sink": logical < policy.sinks,
        "needed": next_use(state.needed(step), logical) < NO_USE,
        "recent": newest | (logical >= own),
    }
    left = torch.ones_like(newest)
    found: dict[str, Any] = {}
    for name, members in classes.items():
        found[name] = int((members & left).sum()) / layers
        left &= ~members
    reserved = classes["sink"] | newest | (next_use(state.protected(step), logical) < NO_USE)
    highest = float(score.masked_fill(reserved, float("-inf")).max())
    return {
        **found,
        "other_old": int(left.sum()) / layers,
        "highest_unprotected_score": highest if math.isfinite(highest) else None,
    }


def touched_messages(messages: Sequence[MessageSpan], positions: Sequence[int]) -> list[int]:
    """Indices of the messages that hold the rising token ``positions``, rising."""
    found: list[int] = []
    at, index = 0, -1
    while at < len(positions):
        index += 1  # mostly the next one, which saves the bisection
        position = positions[at]
        if not messages[index].start <= position < messages[index].end:
            index = bisect_right(messages, position, lo=index, key=lambda span: span.start) - 1
        found.append(index)
        at = bisect_left(positions, messages[index].end, lo=at + 1)
    return found


def _per_span(
    messages: Sequence[MessageSpan], positions: Tensor
) -> tuple[list[int], Tensor, Tensor]:
    """Messages touched by ``positions`` ``[L, n]``, tokens of each ``[L, S]``, and which of those
    messages each position is of ``[L, n]``."""
    touched = touched_messages(messages, torch.unique(positions).tolist())
    starts = positions.new_tensor([messages[i].start for i in touched])
    span_of = torch.searchsorted(starts, positions.contiguous(), right=True) - 1
    counts = positions.new_zeros((positions.shape[0], len(touched)))
    counts.scatter_add_(1, span_of, torch.ones_like(span_of))
    return touched, counts, span_of


def _largest(values: Tensor, count: int) -> list[int]:
    """Indices of the ``count`` largest, rising."""
    found: list[int] = values.argsort(descending=True, stable=True)[:count].sort().values.tolist()
    return found


def _range(values: Tensor) -> list[int]:
    """[minimum, maximum]."""
    return [int(values.min()), int(values.max())]


def _finite(values: Tensor) -> list[float | None]:
    """None where no token was of the class."""
    return [value if math.isfinite(value) else None for value in values.tolist()]
