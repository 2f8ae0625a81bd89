"""Arms: cache policies, and plans that are right or err by a stated amount."""

from __future__ import annotations

import random
from collections.abc import Mapping

from pydantic import ValidationError

from bench.plan import BenchPlan, PlanNoise
from bench.sessions import Session
from engine.config import PolicyConfig, config_error, load_policies
from engine.errors import ConfigError


def arm_policies(plan: BenchPlan) -> dict[str, PolicyConfig]:
    """The policy of every arm, by the arm's name. Raises ConfigError."""
    presets = load_policies()
    found = {}
    for arm in plan.arms:
        if arm.policy not in presets:
            raise ConfigError(
                f"arm {arm.name}: policy {arm.policy!r} is not one of {sorted(presets)}",
                param="arms",
            )
        try:
            found[arm.name] = PolicyConfig.model_validate(
                {**presets[arm.policy].model_dump(), **arm.set, "name": arm.name}
            )
        except ValidationError as error:
            raise config_error(error, f"arm {arm.name}") from error
    return found


def plan_of(session: Session, noise: PlanNoise | None) -> Mapping[int, tuple[int, ...]]:
    """The plan an arm is given: the session's dependency graph, or a wrong one.

    Which edges are missing depends on the seed only, and those missing at some recall are missing
    at every lower one. Invented edges lead to filler steps before the reading step.
    """
    if noise is None:
        return session.graph
    edges = [(step, read) for step, reads in session.graph.items() for read in reads]
    rng = random.Random(f"planner {session.seed}")
    rng.shuffle(edges)
    kept = edges[: round(noise.recall * len(edges))]
    wrong = [
        (step, filler) for step in session.graph for filler in session.filler_steps if filler < step
    ]
    invented = round(len(kept) * (1 - noise.precision) / noise.precision)
    if invented > len(wrong):
        raise ConfigError(
            f"arms: precision {noise.precision} needs {invented} invented edges, but the session "
            f"has {len(wrong)} to choose from"
        )
    found: dict[int, list[int]] = {}
    for step, read in kept + rng.sample(wrong, invented):
        found.setdefault(step, []).append(read)
    return {step: tuple(sorted(reads)) for step, reads in sorted(found.items())}
