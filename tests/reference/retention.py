"""Who stays, by sorting tokens one comparison at a time (DESIGN §3.5)."""

from __future__ import annotations

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

    @property
    def reserve(self) -> int:
        return self.budget // 8 if self.retention == "plan_aware" else 0


def kept(
    rules: Rules, logical: Sequence[int], score: Sequence[float], uses: Sequence[int | None]
) -> list[int]:
    """Indices of the tokens of one layer that stay, rising.

    ``uses``: the step that reads each token next, None for none.
    """
    count = len(logical)
    if count <= rules.budget:
        return list(range(count))
    stay = {i for i in range(count) if logical[i] < rules.sinks or i >= count - rules.recent}

    def best_first(i: int) -> tuple[float, int]:
        return (-score[i], -logical[i])  # a tie goes to the newer token

    if rules.retention == "plan_aware":
        wanted = [(use, best_first(i), i) for i, use in enumerate(uses) if use is not None]
        wanted = sorted(entry for entry in wanted if entry[2] not in stay)
        quota = rules.budget - rules.sinks - rules.recent - rules.reserve
        stay |= {i for _, _, i in wanted[:quota]}
    others = sorted((i for i in range(count) if i not in stay), key=best_first)
    stay |= set(others[: rules.budget - len(stay)])
    return sorted(stay)
