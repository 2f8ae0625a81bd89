"""A benchmark plan: which sessions are played under which arms. YAML, see ``configs/bench``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, JsonValue, model_validator

from bench.layout import Layout
from engine.config import Frozen, config_dir, load_yaml
from engine.errors import ConfigError


class PlanNoise(Frozen):
    """A planner that errs: ``recall`` of the true edges of the dependency graph are in its plan,
    and ``precision`` of the edges in its plan are true (paper, section 5.5), each to the nearest
    whole edge: of the nine of ``coding`` a recall of 0.9 leaves eight."""

    precision: float = Field(default=1.0, gt=0, le=1)
    recall: float = Field(default=1.0, ge=0, le=1)


class Arm(Frozen):
    """One way to run a session: a preset of ``configs/policies``, ``set`` replaces keys of it.
    ``plan``: how far the plan is from the true dependency graph; None: it is the graph."""

    name: str = Field(pattern=r"^[\w.-]{1,64}$")
    policy: str
    set: dict[str, JsonValue] = Field(default={})
    plan: PlanNoise | None = None


class SessionSet(Frozen):
    """Sessions of one layout and length (tokens). ``distances``: tokens between definitions and
    first probe, one session each; only in the distance layout. ``arms``: names; all by default."""

    layout: Layout
    tokens: int = Field(gt=0, le=10_000_000)
    distances: tuple[int, ...] = ()
    arms: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _distances_belong(self) -> Self:
        if (self.layout == "distance") != bool(self.distances):
            raise ValueError("distances are given for layout distance, and only for it")
        if any(distance <= 0 for distance in self.distances):
            raise ValueError("distances must be positive")
        return self


class FillerConfig(Frozen):
    """``tokens`` of a filler step, its answer of at most ``answer_tokens`` included. ``digest``: of
    the only source accepted (``SourcePool.digest``)."""

    tokens: int = Field(default=2000, ge=32)
    answer_tokens: int = Field(default=16, gt=0)
    digest: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")


class Speed(Frozen):
    """What a plan's cost is estimated from: tokens per second, prefill and decode (one session)."""

    prefill: float = Field(gt=0)
    decode: float = Field(gt=0)
    measured_on: str


class BenchPlan(Frozen):
    """A file of ``configs/bench``. Its sessions × seeds × arms are the lines of a result file."""

    name: str = Field(pattern=r"^[\w.-]{1,64}$")
    description: str = ""
    task: str
    model: str = "smollm2-135m"
    chat_template: str | None = None
    thinking: bool | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16", "float64"] = "auto"
    seeds: tuple[int, ...] = Field(min_length=1)
    filler: FillerConfig = FillerConfig()
    sessions: tuple[SessionSet, ...] = Field(min_length=1)
    arms: tuple[Arm, ...] = Field(min_length=1)
    speed: Speed | None = None

    @model_validator(mode="before")
    @classmethod
    def _short_arms(cls, data: Any) -> Any:
        """An arm that is a preset as it is may be given by its name."""
        if isinstance(data, dict) and isinstance(data.get("arms"), list):
            arms = [{"name": a, "policy": a} if isinstance(a, str) else a for a in data["arms"]]
            return {**data, "arms": arms}
        return data

    @model_validator(mode="after")
    def _names_agree(self) -> Self:
        names = [arm.name for arm in self.arms]
        for what, values in (("arms", names), ("seeds", list(self.seeds))):
            if len(set(values)) != len(values):
                raise ValueError(f"{what} must differ from one another")
        for group in self.sessions:
            for name in group.arms or ():
                if name not in names:
                    raise ValueError(f"sessions name the arm {name!r}, which is not in arms")
        played = Counter(
            (group.layout, group.tokens, distance, arm.name)
            for group in self.sessions
            for distance in group.distances or (None,)
            for arm in self.arms_of(group)
        )
        for (layout, tokens, distance, arm), times in played.items():
            if times > 1:
                at = "" if distance is None else f" at distance {distance}"
                raise ValueError(
                    f"sessions give {layout}, {tokens} tokens{at} to the arm {arm!r} {times} times"
                )
        return self

    def arms_of(self, group: SessionSet) -> tuple[Arm, ...]:
        """The arms its sessions are played under, in the plan's order."""
        return tuple(arm for arm in self.arms if group.arms is None or arm.name in group.arms)


def load_plan(name: str | Path) -> BenchPlan:
    """A plan by file, or by the name of a shipped one. Raises ConfigError."""
    path = Path(name)
    shipped = config_dir() / "bench"
    if not path.exists() and path.parent == Path("."):
        path = shipped / f"{path.name.removesuffix('.yaml')}.yaml"
    if not path.exists():
        known = ", ".join(sorted(p.stem for p in shipped.glob("*.yaml")))
        raise ConfigError(f"{name}: no such plan file; shipped plans: {known}", param="plan")
    return load_yaml(path, BenchPlan)
