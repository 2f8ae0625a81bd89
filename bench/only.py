"""Which part of a plan is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.plan import Arm, BenchPlan
from engine.errors import ConfigError

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

    def check(self, plan: BenchPlan) -> None:
        """Raise ConfigError when it names what the plan does not have."""
        there: list[tuple[str, frozenset[str] | frozenset[int] | None, list[str] | list[int]]] = [
            ("arm", self.arms, [arm.name for arm in plan.arms]),
            ("seed", self.seeds, list(plan.seeds)),
            ("distance", self.distances, [d for part in plan.sessions for d in part.distances]),
            ("tokens", self.tokens, [part.tokens for part in plan.sessions]),
        ]
        for key, chosen, known in there:
            for value in sorted((chosen or frozenset()) - set(known), key=str):
                names = ", ".join(map(str, dict.fromkeys(known))) or "none"
                raise ConfigError(
                    f"{key}={value}: not in plan {plan.name}; it has {names}", param="--only"
                )

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
