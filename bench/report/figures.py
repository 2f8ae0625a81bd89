"""The paper's figures 1 and 3, and recall and log-probability by distance, by plotly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import plotly.graph_objects as go

from bench.report.pool import Pool, has_foresight, mean_logprob
from bench.report.sweeps import distance_sweeps
from bench.report.table import Lacking
from bench.results import ProbeResult

# Positions; for models of smaller range all are scaled by one power of two.
_EDGES = (0, 4096, 8192, 16384, 24576, 32768, 40960, 65536, 131072)
# Told apart also without colour vision (Okabe and Ito), and by marker.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
_MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "hexagon")


class Figure(NamedTuple):
    """A plotly figure and its caption."""

    title: str
    drawing: Any
    note: str

    def html(self, plotly_js: bool) -> str:
        """A ``<div>``; with the library inside when ``plotly_js``."""
        return str(self.drawing.to_html(full_html=False, include_plotlyjs=plotly_js))


class Bin(NamedTuple):
    """Probes whose rotary gap is in [low, high)."""

    low: int
    high: int
    probes: list[ProbeResult]


def figures(pool: Pool) -> Iterator[Figure | Lacking]:
    """Every figure that the results of one task and model give; what is lacking for the others."""
    sweeps = distance_sweeps(pool)
    if not sweeps:
        yield Lacking("Figure 1 (checks by distance)", "it needs two distances, as table 3 does")
    for length, at in sweeps.items():
        title = f"Checks passed by distance, {length:,}-token sessions (figure 1)"
        yield _lines(title, "Checks passed (%)", at, lambda part: 100 * part.checks().share)
        if any(mean_logprob(part) is not None for part in at.values()):
            title = f"Recall by distance, {length:,}-token sessions"
            yield _lines(title, "Facts recalled (%)", at, lambda part: 100 * part.recall().share)
            title = f"Log-probability of the true values, {length:,}-token sessions"
            yield _lines(title, "Mean log-probability (nats per token)", at, mean_logprob)
    yield _by_gap(pool)


def gap_bins(probes: list[ProbeResult]) -> list[Bin]:
    """Probes by rotary gap, in the paper's bins; bins without a probe are left out."""
    gaps = [probe.rotary_gap for probe in probes if probe.rotary_gap is not None]
    scale = 1.0
    while gaps and max(gaps) < _EDGES[-1] * scale / 2 and scale > 1 / 64:
        scale /= 2
    edges = [int(edge * scale) for edge in _EDGES]
    edges[-1] = max(edges[-1], int(max(gaps, default=0)) + 1)
    found = [
        Bin(
            low,
            high,
            [p for p in probes if p.rotary_gap is not None and low <= p.rotary_gap < high],
        )
        for low, high in pairwise(edges)
    ]
    return [one for one in found if one.probes]


def _lines(
    title: str, what: str, at: dict[int, Pool], value: Callable[[Pool], float | None]
) -> Figure:
    """A line per arm over distances, with 95 % bootstrap intervals over sessions."""
    drawing = go.Figure()
    names = Pool(tuple(line for here in at.values() for line in here.lines)).arms
    for index, arm in enumerate(names):
        found = {d: here.arm(arm).over_sessions(value) for d, here in at.items()}
        points = {d: one for d, one in found.items() if one is not None}
        above = [one.high - one.mean if one.high is not None else 0 for one in points.values()]
        below = [one.mean - one.low if one.low is not None else 0 for one in points.values()]
        drawing.add_scatter(
            name=arm,
            x=list(points),
            y=[one.mean for one in points.values()],
            mode="lines+markers",
            line={"color": _COLORS[index % len(_COLORS)]},
            marker={"symbol": _MARKERS[index % len(_MARKERS)], "size": 9},
            error_y={"type": "data", "array": above, "arrayminus": below, "width": 3},
        )
    drawing.update_xaxes(
        title="Tokens between the definitions and their use",
        type="log",
        tickvals=list(at),
        ticktext=[f"{distance:,}" for distance in at],
    )
    drawing.update_yaxes(title=what, range=[0, 105] if what.endswith("(%)") else None)
    return Figure(title, _styled(drawing, title), "Bars: 95% bootstrap intervals over sessions.")


def _by_gap(pool: Pool) -> Figure | Lacking:
    """Figure 3: checks passed by rotary gap, over the arms with foresight."""
    title = "Checks passed by rotary gap (figure 3)"
    with_plan = Pool(tuple(line for line in pool.lines if has_foresight(line)))
    bins = gap_bins(with_plan.probes())
    if not bins:
        return Lacking(title, "it needs probes of arms with foresight that have a rotary gap")
    labels = [f"{one.low:,} to {one.high:,}" for one in bins]
    shares = [
        sum(p.score.passed for p in one.probes) / max(1, sum(p.score.total for p in one.probes))
        for one in bins
    ]
    counts = [len(one.probes) for one in bins]
    drawing = go.Figure()
    drawing.add_bar(
        name="checks passed",
        x=labels,
        y=[100 * share for share in shares],
        text=[f"{100 * share:.0f}" for share in shares],
        customdata=counts,
        hovertemplate="%{y:.1f}% of the checks of %{customdata} probes<extra></extra>",
        marker={"color": _COLORS[0]},
    )
    residency = [
        [value for probe in one.probes if (value := probe.residency) is not None] for one in bins
    ]
    if all(residency):
        drawing.add_scatter(
            name="needed tokens resident",
            x=labels,
            y=[100 * sum(values) / len(values) for values in residency],
            mode="lines+markers",
            line={"color": _COLORS[1], "dash": "dot"},
        )
    drawing.update_xaxes(
        title="Positions between the query and what it needs, as the model sees them"
    )
    drawing.update_yaxes(title="%", range=[0, 105])
    note = f"Arms: {', '.join(with_plan.arms)}. Probes per bin: {', '.join(map(str, counts))}."
    return Figure(title, _styled(drawing, title), note)


def _styled(drawing: Any, title: str) -> Any:
    return drawing.update_layout(
        title=title, template="plotly_white", height=460, hovermode="closest"
    )
