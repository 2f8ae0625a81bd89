"""The residency map: arrays and data frames in, a plotly figure out; nothing is read or drawn.

It is a heat map (an image), never an SVG node per token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from dashboard.data import Bins
from dashboard.figure import Trace, figure
from dashboard.palette import CLASSES, SEQUENTIAL, Palette

ColourBy = Literal["class", "share", "next use", "score"]
COLOUR_BY: tuple[ColourBy, ...] = ("class", "share", "next use", "score")
SHADES = 8
"""Shades of a class: how much of a bin is resident."""
_SELECTABLE_POINTS = 200
_NAMED_STEPS = 45


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
        shapes.append(box | {"x1": selected[1], "line": {"color": palette.text, "width": 1}})
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
