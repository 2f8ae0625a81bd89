"""Arms of one condition side by side: the paper's table 2 and what stands behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from bench.report.pool import Condition, Pool, condition, has_foresight, position_limit
from bench.report.table import Lacking, Table, number
from bench.results import ProbeResult
from bench.statistics import compare, fisher, format_p, interaction

# The 2 × 2 of the paper: neither, bounded positions, foresight, both.
_FACTORS = ("h2o", "positions-only", "retention-only", "pace")


class Arms(NamedTuple):
    """Which arm the others are compared with, and which one is compared with all others."""

    baseline: str
    ours: str


def arm_tables(pool: Pool, arms: Arms) -> Iterator[Table | Lacking]:
    """The tables of every condition in the results of one task and model."""
    for where, here in pool.split(condition).items():
        yield from _comparison(here, where, arms)
    if all(probe.composition is None for probe in pool.probes()):
        yield Lacking("Resident tokens at the probes", "no probe says what was resident")


def _comparison(pool: Pool, where: Condition, arms: Arms) -> Iterator[Table | Lacking]:
    """Table 2: the arms of one condition side by side."""
    rows = []
    for arm in pool.arms:
        mine = pool.arm(arm)
        first = mine.lines[0]
        limit = position_limit(first)
        rows.append(
            (
                arm,
                "✓" if has_foresight(first) else "–",
                "–" if limit is None else f"{limit:,}",
                str(len(mine.lines)),
                str(mine.checks()),
                f"{mine.full().part}/{mine.full().total}",
                mine.recall().percent,
                number(mine.mean(lambda probe: probe.residency), ".3f"),
                number(mine.mean(lambda probe: probe.rotary_gap), ",.0f"),
                paired(pool, arm, arms.baseline),
            )
        )
    yield Table(
        f"Arms: {where} (table 2)",
        ("Arm", "Foresight", "L", "Sessions", "Checks", "Full", "Recall", "Residency",
         "Rotary gap", f"Paired vs. {arms.baseline}"),
        tuple(rows),
        "Checks: hidden checks passed. Full: probes passing every check. Paired: (session, probe) "
        "pairs better/worse/tied, two-sided sign test.",
    )  # fmt: skip
    yield _against(pool, where, arms)
    yield _outcomes(pool, where)
    yield from _cache(pool, where)


def _against(pool: Pool, where: Condition, arms: Arms) -> Table | Lacking:
    """The lower panel of table 2: one arm against each other one, and the interaction."""
    title = f"{arms.ours} against each other arm: {where} (table 2, lower panel)"
    others = [arm for arm in pool.arms if arm != arms.ours]
    if arms.ours not in pool.arms or not others:
        return Lacking(title, f"it needs the arm {arms.ours} and another one; --arm names one")
    names = pool.probe_names
    split = names if len(names) <= 3 else []
    rows = []
    for other in others:
        full = [
            _fisher(pool, arms.ours, other, chosen)
            for chosen in (None, *([name] for name in split))
        ]
        rows.append((other, paired(pool, arms.ours, other), *full))
    return Table(
        title,
        (f"{arms.ours} vs.", "Paired", "Full pass", *(f"Full pass {name}" for name in split)),
        tuple(rows),
        _interaction(pool),
    )


def _interaction(pool: Pool) -> str:
    if not set(_FACTORS) <= set(pool.arms):
        return ""
    of = [pool.arm(arm).fractions() for arm in _FACTORS]
    shared = sorted(set.intersection(*map(set, of)), key=repr)
    if not shared:
        return ""
    found = interaction(*([fractions[key] for key in shared] for fractions in of))
    mean, low, high, n = found.effect
    interval = (
        "" if low is None or high is None else f", 95% CI [{100 * low:+.1f}, {100 * high:+.1f}]"
    )
    return (
        f"Interaction of foresight and bounded positions, on fractions of checks: "
        f"{100 * mean:+.1f} points{interval}, sign-flip {format_p(found.p)} (n = {n})."
    )


def _outcomes(pool: Pool, where: Condition) -> Table:
    """How probes ended: failures with every fact recalled, and with facts missing."""
    rows = []
    for arm in pool.arms:
        probes = pool.arm(arm).probes()
        ends = Counter(probe.score.outcome for probe in probes)
        facts = Counter(fact for probe in probes for fact in probe.score.missing)
        missed = ", ".join(f"{fact} ({count})" for fact, count in facts.most_common(4))
        rows.append(
            (
                arm,
                *(str(ends[end]) for end in ("pass", "coding_error", "forgetting")),
                missed or "–",
            )
        )
    return Table(
        f"How probes ended: {where}",
        ("Arm", "Pass", "Coding error", "Forgetting", "Facts missing most often"),
        tuple(rows),
        "Coding error: failed with every fact in the answer. Forgetting: with facts missing.",
    )


def _cache(pool: Pool, where: Condition) -> Iterator[Table]:
    """What was resident when the probes were asked (paper, section 5.7)."""
    parts = ("sink", "needed", "other_old", "recent")
    rows = []
    for arm in pool.arms:
        mine = pool.arm(arm)
        means = [mine.mean(_resident(part)) for part in parts]
        scores = [
            score
            for probe in mine.probes()
            if (score := probe.highest_unprotected_score) is not None
        ]
        if means[0] is not None:
            top = number(max(scores, default=None), ",.1f")
            rows.append((arm, *(number(mean, ",.0f") for mean in means), top))
    if rows:
        yield Table(
            f"Resident tokens at the probes: {where}",
            ("Arm", "Sinks", "Needed", "Other old", "Recent", "Highest unprotected score"),
            tuple(rows),
            "Means over probes and layers; the score is the highest of all probes.",
        )


def _resident(part: str) -> Callable[[ProbeResult], float | None]:
    return lambda probe: getattr(probe.composition, part, None)


def paired(pool: Pool, ours: str, theirs: str) -> str:
    """Two arms on the (session, probe) pairs that both have; a dash when there are none."""
    mine, others = pool.arm(ours).fractions(), pool.arm(theirs).fractions()
    shared = [key for key in mine if key in others]
    if ours == theirs or not shared:
        return "–"
    found = compare([mine[key] for key in shared], [others[key] for key in shared])
    return f"{found.better}/{found.worse}/{found.tied}, {format_p(found.p)}"


def _fisher(pool: Pool, ours: str, theirs: str, names: list[str] | None) -> str:
    mine, others = pool.arm(ours).full(names), pool.arm(theirs).full(names)
    p = format_p(fisher(mine.part, mine.total, others.part, others.total))
    return f"{mine.part}/{mine.total} vs. {others.part}/{others.total}, {p}"
