"""The figures of a session at a step: arrays and data frames in, plotly figures out. Nothing here
reads or draws.

Residency is a heat map (a canvas), never an SVG node per token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from dashboard.data import Bins
from dashboard.palette import CLASSES, SEQUENTIAL, Palette

ColourBy = Literal["class", "share", "next use", "score"]
COLOUR_BY: tuple[ColourBy, ...] = ("class", "share", "next use", "score")
CONFIG = {"displaylogo": False, "modeBarButtonsToRemove": ["lasso2d", "select2d", "autoScale2d"]}
"""Options of every chart."""
SHADES = 8
"""Shades of a class: how much of a bin is resident."""
LEGEND_ABOVE = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 1, "xanchor": "right"}
_FONT = "Source Sans, sans-serif"
_POINTS_AS_SVG = 500
"""Up to this many points SVG draws faster than a WebGL context starts."""
_SELECTABLE_POINTS = 200
_NAMED_STEPS = 45

Trace = dict[str, Any]


def residency_map(
    bins: Bins,
    palette: Palette,
    *,
    step: int,
    colour_by: ColourBy = "class",
    step_starts: Mapping[int, int] | None = None,
    needed: pd.DataFrame | None = None,
    selected: tuple[int, int] | None = None,
    legend: bool = True,
    height: int = 290,
) -> go.Figure:
    """Layers × logical positions: what each layer holds.

    Args:
        colour_by: ``class`` (hue by class, shade by the resident share of the bin), ``share``,
            ``next use`` (steps until it is read) or ``score``.
        step_starts: step → its first logical position; named along the top.
        needed: messages that the step reads (columns message, start, end, tokens, least).
        selected: logical positions [start, end) of the message looked at.
        legend: name the classes below.
    """
    layers, view = len(bins.counts), (int(bins.edges[0]), int(bins.edges[-1]))
    traces = [_cells(bins, colour_by, step, palette), _selectable(bins)]
    if colour_by == "class" and legend:
        traces += _class_legend(palette)
    shapes = []
    if needed is not None and len(needed):
        traces.append(_needed(needed, view, palette, legend))
    if selected is not None:
        box = {"type": "rect", "yref": "paper", "y0": 0, "y1": 1, "x0": selected[0]}
        shapes.append(box | {"x1": selected[1], "line": {"color": palette.text, "width": 1.5}})
    layout = {
        "xaxis": {
            "title": {"text": f"logical position (tokens), after step {step}", "standoff": 6},
            "range": list(view),
            "tickformat": ",d",
            "showgrid": False,
        },
        "yaxis": {
            "title": {"text": "layer"},
            "range": [layers - 0.5, -0.5],
            "showgrid": False,
            "fixedrange": True,
            "tickformat": "d",
        },
        "legend": {"orientation": "h", "y": -0.16, "x": 1, "xanchor": "right", "yanchor": "top"},
        "shapes": shapes,
        "dragmode": "select",
        "selectdirection": "h",
    }
    if step_starts:
        traces.append({"type": "scatter", "x": [None], "y": [None], "xaxis": "x2"} | _SILENT)
        layout["xaxis2"] = _step_axis(step_starts, view, palette)
    return figure(palette, height, traces, layout)


def step_lines(
    steps: pd.DataFrame, palette: Palette, *, step: int, limit: int | None, height: int = 250
) -> go.Figure:
    """ρ above Δ by step, a triangle where positions were renumbered, a line at ``step``.

    Args:
        limit: the policy's position limit L (tokens), drawn beside Δ.
    """
    x = steps["step"]
    rho, gap = numbers(steps, "residency"), numbers(steps, "rotary_gap")
    bad = (rho < 1).to_numpy()
    renumbered = steps[numbers(steps, "renumbers") > 0]
    line: Trace = {"type": scatter(len(x)), "mode": "lines+markers", "connectgaps": True, "x": x}
    first: Trace = line | {
        "y": rho,
        "name": "residency ρ",
        "line": {"color": palette.first, "width": 1.5},
        "marker": {
            "size": 8,
            "color": np.where(bad, palette.bad, palette.first),
            "symbol": np.where(bad, "x", "circle"),
        },
        "hovertemplate": "step %{x}: ρ = %{y:.1%}<extra></extra>",
    }
    second: Trace = line | {
        "y": gap,
        "yaxis": "y2",
        "name": "rotary gap Δ",
        "line": {"color": palette.second, "width": 1.5},
        "marker": {"size": 6, "color": palette.second, "symbol": "diamond"},
        "hovertemplate": "step %{x}: Δ = %{y:,} positions<extra></extra>",
    }
    ticks: Trace = {
        "type": scatter(len(renumbered)),
        "mode": "markers",
        "x": renumbered["step"],
        "y": np.zeros(len(renumbered)),
        "yaxis": "y2",
        "name": "renumbered",
        "marker": {"symbol": "triangle-up", "size": 9, "color": palette.faint},
        "customdata": renumbered["renumbers"],
        "hovertemplate": "step %{x}: %{customdata} renumbers<extra></extra>",
    }
    top = max(float(np.nanmax(gap)) if gap.notna().any() else 1.0, limit or 0)
    shapes, notes = [step_mark(step, palette)], []
    if limit is not None:
        border = {"color": palette.faint, "width": 1, "dash": "dot"}
        across = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "yref": "y2"}
        shapes.append(across | {"y0": limit, "y1": limit, "line": border})
        place = {"xref": "paper", "x": 0, "xanchor": "left", "yref": "y2", "yanchor": "bottom"}
        text = f"position limit L = {limit:,}"
        notes.append(place | {"y": limit, "text": text, "showarrow": False, "font": {"size": 11}})
    layout = {
        "margin": {"l": 150, "r": 90, "t": 30},
        "xaxis": {"title": {"text": "step"}, "anchor": "y2", "range": step_range(x)}
        | {"tickformat": "d"},
        "yaxis": {
            "title": {"text": "ρ (share)"},
            "domain": [0.56, 1],
            "range": [-0.08, 1.12],
            "tickformat": ".0%",
            "tickvals": [0, 0.5, 1],
        },
        "yaxis2": {
            "title": {"text": "Δ (positions)"},
            "domain": [0, 0.46],
            "range": [-0.06 * top, 1.25 * top],
            "nticks": 4,
        },
        "shapes": shapes,
        "annotations": notes,
        "legend": LEGEND_ABOVE,
    }
    return figure(palette, height, [first, second, ticks], layout)


def figure(
    palette: Palette, height: int, traces: Sequence[Trace], layout: Mapping[str, Any]
) -> go.Figure:
    """A figure in the dashboard's look; ``layout`` says what differs from it."""
    axis = {"gridcolor": palette.grid, "zeroline": False, "linecolor": palette.grid}
    axes = {name: axis | value for name, value in layout.items() if name[1:5] == "axis"}
    margin = {"l": 62, "r": 12, "t": 40, "b": 46} | layout.get("margin", {})
    return go.Figure(
        {
            "data": list(traces),
            "layout": {
                "height": height,
                "paper_bgcolor": "rgba(0,0,0,0)",
                "plot_bgcolor": "rgba(0,0,0,0)",
                "font": {"family": _FONT, "size": 12, "color": palette.text},
                "hoverlabel": {"font": {"family": _FONT}},
                "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": palette.faint},
                # an empty template: plotly's own would be merged into every figure
                "template": {},
                **layout,
                **axes,
                "margin": margin,
            },
        }
    )


def step_mark(step: int, palette: Palette, axis: str = "x") -> dict[str, Any]:
    """A line at ``step`` over the whole height."""
    line = {"color": palette.text, "width": 1.2, "dash": "dot"}
    place = {"xref": axis, "yref": "paper", "x0": step, "x1": step, "y0": 0, "y1": 1}
    return {"type": "line", "line": line, **place}


def step_range(steps: pd.Series) -> list[float]:
    """Axis range that shows all ``steps``."""
    return [float(steps.min()) - 0.6, float(steps.max()) + 0.6]


def scatter(points: int) -> str:
    """The trace that draws so many points fastest."""
    return "scatter" if points <= _POINTS_AS_SVG else "scattergl"


def numbers(frame: pd.DataFrame, column: str) -> pd.Series:
    """A column as floats, NaN for None."""
    return pd.to_numeric(frame[column], errors="coerce")


_SILENT: Trace = {"showlegend": False, "hoverinfo": "skip"}


def _cells(bins: Bins, colour_by: ColourBy, step: int, palette: Palette) -> Trace:
    """The heat map itself."""
    widths = np.diff(bins.edges)
    share = bins.counts / np.maximum(widths, 1)
    look = (
        _class_cells(bins, share, palette)
        if colour_by == "class"
        else _magnitudes(bins, share, colour_by, step)
    )
    return {
        "type": "heatmap",
        "x": bins.edges,
        "y": np.arange(len(bins.counts), dtype=np.int16),
        "customdata": bins.counts.astype(np.int32),
        "hovertemplate": f"layer %{{y}}, about position %{{x:,.0f}}: %{{customdata}} of "
        f"{int(widths.max())} tokens resident<extra></extra>",
        "hoverongaps": False,
    } | look


def _class_cells(bins: Bins, share: np.ndarray, palette: Palette) -> Trace:
    """Cells coloured by class and shade."""
    shade = np.ceil(np.clip(share, 0, 1) * SHADES) - 1  # any token at all shows
    cells = np.where(bins.classes >= 0, bins.classes * SHADES + shade, np.nan)
    colours = [
        palette.tint(colour, 0.12 + 0.88 * ((n + 1) / SHADES) ** 0.8)
        for colour in palette.classes
        for n in range(SHADES)
    ]
    count = len(colours)
    return {
        "z": cells.astype(np.float32),
        "zmin": -0.5,
        "zmax": count - 0.5,
        # equal steps without blending
        "colorscale": [[at / count, c] for i, c in enumerate(colours) for at in (i, i + 1)],
        "showscale": False,
    }


def _magnitudes(bins: Bins, share: np.ndarray, colour_by: ColourBy, step: int) -> Trace:
    """Cells coloured by a number, with its scale."""
    scale = [[i / (len(SEQUENTIAL) - 1), colour] for i, colour in enumerate(SEQUENTIAL)]
    limits: Trace = {}
    if colour_by == "share":
        values, title, limits = share, "resident<br>share", {"zmin": 0, "zmax": 1}
    elif colour_by == "next use":  # bright: soon
        values, title = bins.next_use - step, "steps until<br>read"
        limits = {"reversescale": True, "zmin": 0}
    else:
        values, title = np.log10(np.maximum(bins.score, 1e-6)), "score<br>(log₁₀)"
    return {
        "z": np.where(bins.counts == 0, np.nan, values).astype(np.float32),
        "colorscale": scale,
        "colorbar": {"title": {"text": title, "font": {"size": 12}}, "thickness": 10},
        **limits,
    }


def _selectable(bins: Bins) -> Trace:
    """Unseen points that a drag over a range selects: heat maps tell of none."""
    every = max(1, len(bins.edges) // _SELECTABLE_POINTS)
    centres = ((bins.edges[:-1] + bins.edges[1:]) / 2)[::every]
    y = np.full(len(centres), len(bins.counts) / 2)
    points = {"x": centres, "y": y, "mode": "markers", "opacity": 0}
    return {"type": "scatter"} | points | _SILENT


def _class_legend(palette: Palette) -> list[Trace]:
    square = {"symbol": "square", "size": 10}
    return [
        {"type": "scatter", "x": [None], "y": [None], "mode": "markers", "name": name}
        | {"marker": square | {"color": colour}, "hoverinfo": "skip"}
        for name, colour in zip(CLASSES, palette.classes, strict=True)
    ]


def _step_axis(
    starts: Mapping[int, int], view: tuple[int, int], palette: Palette
) -> dict[str, Any]:
    """Steps along the top, at their first position; one too close to the last named is left out."""
    low, high = view
    room, last, shown = (high - low) / _NAMED_STEPS, -float("inf"), []
    for step, start in sorted(starts.items()):
        if low <= start < high and start - last >= room:
            shown.append((step, start))
            last = start
    return {
        "overlaying": "x",
        "side": "top",
        "matches": "x",
        "tickvals": [start for _, start in shown],
        "ticktext": [str(step) for step, _ in shown],
        "title": {"text": "step that wrote it", "standoff": 4},
        "showgrid": True,
        "ticks": "outside",
        "ticklen": 3,
        "tickfont": {"size": 11, "color": palette.faint},
    }


def _needed(needed: pd.DataFrame, view: tuple[int, int], palette: Palette, legend: bool) -> Trace:
    """A triangle above each needed message that is in view; a cross where some of it is gone."""
    whole = (needed["least"] >= needed["tokens"]).to_numpy()
    centre = ((needed["start"] + needed["end"]) / 2).to_numpy()
    seen = (centre >= view[0]) & (centre < view[1])
    return {
        "type": "scatter",
        "mode": "markers",
        "x": centre[seen],
        "y": np.full(seen.sum(), -0.5),
        "name": "needed now",
        "showlegend": legend,
        "cliponaxis": False,
        "marker": {
            "symbol": np.where(whole, "triangle-down", "x")[seen],
            "size": 11,
            "color": np.where(whole, palette.good, palette.bad)[seen],
            "line": {"width": 1, "color": palette.background},
        },
        "customdata": needed[["message", "least", "tokens"]].to_numpy()[seen],
        "hovertemplate": "message %{customdata[0]}, needed now: %{customdata[1]} of "
        "%{customdata[2]} tokens resident<extra></extra>",
    }
