"""Which part of a plan is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.plan import Arm

if TYPE_CHECKING:
    from bench.sessions import Session


@dataclass(frozen=True, slots=True)
class Only:
    """Which part of a plan to run; None: all. ``limit``: of the (session, arm) pairs chosen."""

    arms: frozenset[str] | None = None
    seeds: frozenset[int] | None = None
    distances: frozenset[int] | None = None
    tokens: frozenset[int] | None = None
    limit: int | None = None

    def takes(self, arm: Arm, session: Session) -> bool:
        """Whether the pair is chosen (the limit apart)."""
        wanted = (
            (self.arms, arm.name),
            (self.seeds, session.seed),
            (self.distances, session.distance),
            (self.tokens, session.tokens),
        )
        return all(chosen is None or value in chosen for chosen, value in wanted)


ALL = Only()
