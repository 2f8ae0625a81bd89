"""Who stays, by sorting tokens one comparison at a time (DESIGN §3.5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Rules:
    """Sizes in tokens. ``limit`` None: positions as written. ``reserve``: plan_aware only."""

    retention: str
    budget: int
    sinks: int
    recent: int
    interval: int
    chunk: int
    limit: int | None = None
    foresight: str = "strict"
    renumber: str = "limit"

    @property
    def reserve(self) -> int:
        strict = self.retention == "plan_aware" and self.foresight == "strict"
        return self.budget // 8 if strict else 0

    @property
    def observe(self) -> int | None:
        """Tokens at the end of a prompt whose attention counts for SnapKV."""
        return 32 if self.retention == "snapkv" else None


def kept(
    rules: Rules,
    logical: Sequence[int],
    score: Sequence[float],
    uses: Sequence[int | None],
    step: int = 0,
) -> list[int]:
    """Indices of the tokens of one layer that stay, rising.

    ``uses``: the step that reads each token next, None for none; ``step``: the current one.
    """
    count = len(logical)
    if count <= rules.budget:
        return list(range(count))
    if rules.retention == "streaming":
        score = [float(i) for i in range(count)]
    if rules.retention == "snapkv":
        score = [max(score[max(0, i - 3) : i + 4]) for i in range(count)]
    if rules.foresight == "additive":
        score = [value + _bonus(use, step) for value, use in zip(score, uses, strict=True)]
    stay = {i for i in range(count) if logical[i] < rules.sinks or i >= count - rules.recent}

    def best_first(i: int) -> tuple[float, int]:
        return (-score[i], -logical[i])  # a tie goes to the newer token

    if rules.retention == "plan_aware" and rules.foresight == "strict":
        wanted = [(use, best_first(i), i) for i, use in enumerate(uses) if use is not None]
        wanted = sorted(entry for entry in wanted if entry[2] not in stay)
        quota = rules.budget - rules.sinks - rules.recent - rules.reserve
        stay |= {i for _, _, i in wanted[:quota]}
    others = sorted((i for i in range(count) if i not in stay), key=best_first)
    stay |= set(others[: rules.budget - len(stay)])
    return sorted(stay)


def _bonus(use: int | None, step: int) -> float:
    """The paper's Eq. 2 with σ = 1e5 and λ = 0.35."""
    if use is None:
        return 0.0
    return 1e5 * (0.5 + 0.5 * math.exp(-0.35 * (use - step)))
