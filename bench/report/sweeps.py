"""Quality as distance or length grows: the paper's tables 3, 4, 5 and 7, and log-probability."""

from __future__ import annotations

from collections.abc import Iterator

from bench.report.pool import Pool, condition, has_foresight, mean_logprob
from bench.report.table import Lacking, Table, interval, number
from bench.report.tables import Arms, paired

_PRIMARY = ("p1", "p2")


def sweep_tables(pool: Pool, arms: Arms) -> Iterator[Table | Lacking]:
    """The tables of the results of one task and model; what is lacking for the others."""
    yield from _by_distance(pool, arms)
    yield _by_length(pool)
    yield _logprobs(pool)


def distance_sweeps(pool: Pool) -> dict[int, dict[int, Pool]]:
    """Session length → distance → results, of lengths that have two distances or more."""
    lengths = pool.split(lambda line: line.session_tokens)
    found = {
        length: part.split(lambda line: line.distance or 0) for length, part in lengths.items()
    }
    swept = {
        length: {distance: part for distance, part in at.items() if distance}
        for length, at in found.items()
    }
    return {length: at for length, at in swept.items() if len(at) > 1}


def _by_distance(pool: Pool, arms: Arms) -> Iterator[Table | Lacking]:
    """Tables 3, 4 and 7: per session length, a row per distance and a column per arm."""
    sweeps = distance_sweeps(pool)
    if not sweeps:
        found = ", ".join(f"{distance:,}" for distance in pool.distances) or "none"
        yield Lacking(
            "By distance (tables 3, 4 and 7, figure 1)",
            "it needs sessions of one length in the distance layout at two distances or more; "
            f"distances here: {found}",
        )
    for length, at in sweeps.items():
        sweep = Pool(tuple(line for here in at.values() for line in here.lines))
        names = sweep.arms
        near = [
            arm for arm in names if any(p.rotary_gap is not None for p in sweep.arm(arm).probes())
        ]
        rows = []
        for distance, here in at.items():
            gaps = (here.arm(arm).mean(lambda probe: probe.rotary_gap) for arm in near)
            rows.append(
                (
                    f"{distance:,}",
                    *(here.arm(arm).checks().percent for arm in names),
                    *(number(gap, ",.0f") for gap in gaps),
                    paired(here, arms.ours, arms.baseline),
                )
            )
        yield Table(
            f"Checks by distance: {length:,}-token sessions (table 3)",
            ("D", *names, *(f"gap {arm}" for arm in near), f"{arms.ours} vs. {arms.baseline}"),
            tuple(rows),
            "D: tokens between the definitions and the probes. Gap: mean distance, in positions "
            f"the model sees, from the query to what it needs. {_residency(at)}{_sessions(at)}",
        )
        if set(_PRIMARY) <= set(sweep.probe_names):
            yield Table(
                f"Checks and recall of p1 + p2: {length:,}-token sessions (table 4)",
                ("D", *names, *(f"recall {arm}" for arm in names)),
                tuple(
                    (
                        f"{distance:,}",
                        *(here.arm(arm).checks(_PRIMARY).percent for arm in names),
                        *(here.arm(arm).recall(_PRIMARY).percent for arm in names),
                    )
                    for distance, here in at.items()
                ),
                _sessions(at),
            )
        yield Table(
            f"Recall by distance: {length:,}-token sessions (table 7)",
            ("D", *names),
            tuple(
                (f"{distance:,}", *(here.arm(arm).recall().percent for arm in names))
                for distance, here in at.items()
            ),
            f"Facts of the session that the answers contain. {_sessions(at)}",
        )


def _by_length(pool: Pool) -> Table | Lacking:
    """Table 5: quality at length."""
    title = "By session length (table 5)"
    lengths = pool.split(lambda line: line.session_tokens)
    if len(lengths) < 2:
        return Lacking(title, f"it needs two session lengths; here is only {min(lengths):,}")
    rows = []
    for length, here in lengths.items():
        for arm in here.arms:
            mine = here.arm(arm)
            full = mine.full()
            rows.append(
                (
                    f"{length:,}",
                    str(len(mine.lines)),
                    arm,
                    mine.checks().percent,
                    f"{full.part}/{full.total}",
                    mine.recall().percent,
                    number(mine.mean(lambda probe: probe.rotary_gap), ",.0f"),
                )
            )
    columns = ("Session", "Sessions", "Arm", "Checks", "Full", "Recall", "Rotary gap")
    return Table(title, columns, tuple(rows))


def _logprobs(pool: Pool) -> Table | Lacking:
    """Recall and log-probability of the true values, with intervals over sessions."""
    title = "Recall and log-probability of the true values"
    if mean_logprob(pool) is None:
        return Lacking(title, "no probe has targets whose log-probability was measured")
    rows = []
    for one, here in pool.split(condition).items():
        for arm in here.arms:
            mine = here.arm(arm)
            recall = mine.over_sessions(lambda part: part.recall().share)
            logprob = mine.over_sessions(mean_logprob)
            distance = f"{one.distance:,}" if one.distance else "–"
            rows.append(
                (f"{one.session_tokens:,}", distance, arm, str(len(mine.lines)),
                 interval(recall, ".0%"), interval(logprob, ".2f"))
            )  # fmt: skip
    return Table(
        title,
        ("Session", "D", "Arm", "Sessions", "Recall", "Mean log-probability (nats per token)"),
        tuple(rows),
        "In brackets: 95% bootstrap intervals over sessions.",
    )


def _residency(at: dict[int, Pool]) -> str:
    """Of the arms with foresight, the range over arms and distances."""
    planned = [
        here.arm(arm)
        for here in at.values()
        for arm in here.arms
        if has_foresight(here.arm(arm).lines[0])
    ]
    found = [one for part in planned if (one := part.mean(lambda p: p.residency)) is not None]
    if not found:
        return ""
    return f"Residency of what is needed, with foresight: {min(found):.3f} to {max(found):.3f}. "


def _sessions(at: dict[int, Pool]) -> str:
    counts = sorted({len(here.arm(arm).lines) for here in at.values() for arm in here.arms})
    return f"Sessions per cell: {counts[0]}" + (f" to {counts[-1]}." if counts[1:] else ".")
