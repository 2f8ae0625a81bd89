"""What reports count: checks, full passes, recall and gaps of some result lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

from bench.results import ProbeResult, ResultLine, SessionKey
from bench.statistics import Interval, bootstrap_mean

K = TypeVar("K", bound=Any)
# As in the paper; a variant, such as pace-range, follows the arm it is named after.
_ORDER = (
    "full", "h2o", "snapkv", "streaming", "positions-only", "retention-only", "pace",
)  # fmt: skip


class Count(NamedTuple):
    """``part`` of ``total``; the paper's ``63/150 (42%)``."""

    part: int
    total: int

    @property
    def share(self) -> float:
        """From 0 to 1; 0 of nothing is 0."""
        return self.part / self.total if self.total else 0.0

    def __str__(self) -> str:
        return f"{self.part}/{self.total} ({self.percent})"

    @property
    def percent(self) -> str:
        """In whole percent; a dash of nothing."""
        return f"{100 * self.share:.0f}%" if self.total else "–"


class Condition(NamedTuple):
    """Sessions that differ in their seeds only; ``distance`` is 0 in the single layout."""

    session_tokens: int
    layout: str
    distance: int

    def __str__(self) -> str:
        at = f", definitions {self.distance:,} tokens before use" if self.distance else ""
        return f"{self.session_tokens:,}-token sessions, {self.layout} layout{at}"


@dataclass(frozen=True, slots=True)
class Pool:
    """Some result lines of one task and model."""

    lines: tuple[ResultLine, ...]

    def __bool__(self) -> bool:
        return bool(self.lines)

    def split(self, key: Callable[[ResultLine], K]) -> dict[K, Pool]:
        """Pools of the lines with the same key, in order of the keys."""
        found: dict[K, list[ResultLine]] = {}
        for line in self.lines:
            found.setdefault(key(line), []).append(line)
        return {one: Pool(tuple(found[one])) for one in sorted(found)}

    def arm(self, name: str) -> Pool:
        """The lines of one arm."""
        return Pool(tuple(line for line in self.lines if line.arm == name))

    @property
    def arms(self) -> list[str]:
        """The arms, in the paper's order."""
        return sorted({line.arm for line in self.lines}, key=_place)

    @property
    def distances(self) -> list[int]:
        """Tokens between definitions and first probe, rising; none in the single layout."""
        return sorted({line.distance for line in self.lines if line.distance is not None})

    @property
    def probe_names(self) -> list[str]:
        """In the order they were asked."""
        return list(dict.fromkeys(probe.name for probe in self.probes()))

    def probes(self, names: Iterable[str] | None = None) -> list[ProbeResult]:
        """All probes, or those of these ``names``; likewise below."""
        wanted = None if names is None else set(names)
        return [
            probe
            for line in self.lines
            for probe in line.probes
            if wanted is None or probe.name in wanted
        ]

    def checks(self, names: Iterable[str] | None = None) -> Count:
        """Hidden checks passed, pooled over probes."""
        probes = self.probes(names)
        return Count(sum(p.score.passed for p in probes), sum(p.score.total for p in probes))

    def full(self, names: Iterable[str] | None = None) -> Count:
        """Probes that passed every check."""
        probes = self.probes(names)
        return Count(sum(p.score.passed == p.score.total for p in probes), len(probes))

    def recall(self, names: Iterable[str] | None = None) -> Count:
        """Facts in the answers, pooled over probes."""
        probes = self.probes(names)
        return Count(sum(p.score.found for p in probes), sum(p.score.facts for p in probes))

    def mean(self, value: Callable[[ProbeResult], float | None]) -> float | None:
        """Mean over the probes that have the value; None when none has."""
        found = [one for probe in self.probes() if (one := value(probe)) is not None]
        return fmean(found) if found else None

    def fractions(self) -> dict[tuple[SessionKey, str], float]:
        """The unit of analysis: of each (session, probe), the fraction of its checks passed."""
        return {
            (line.session, probe.name): probe.score.passed / probe.score.total
            for line in self.lines
            for probe in line.probes
            if probe.score.total
        }

    def over_sessions(self, value: Callable[[Pool], float | None]) -> Interval | None:
        """Mean of one value per session, resampled by session: its probes share their fate."""
        found = [one for line in self.lines if (one := value(Pool((line,)))) is not None]
        return bootstrap_mean(found) if found else None


def condition(line: ResultLine) -> Condition:
    """The condition a line belongs to."""
    return Condition(line.session_tokens, line.layout, line.distance or 0)


def mean_logprob(pool: Pool) -> float | None:
    """Mean over targets of the mean log-probability of a token (nats)."""
    found = [target.mean for probe in pool.probes() for target in probe.targets]
    return fmean(found) if found else None


def _place(arm: str) -> tuple[int, str]:
    like = [at for at, name in enumerate(_ORDER) if arm == name or arm.startswith(f"{name}-")]
    return (like[0] if like else len(_ORDER), arm)


def has_foresight(line: ResultLine) -> bool:
    """Whether its arm keeps what the plan names."""
    return line.policy.get("retention") == "plan_aware"


def position_limit(line: ResultLine) -> int | None:
    """L of its arm; None: positions as written."""
    limit = line.policy.get("position_limit")
    return limit if isinstance(limit, int) else None
