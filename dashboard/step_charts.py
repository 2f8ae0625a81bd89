"""ρ and Δ by step, of one session and of two."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from dashboard.figure import LEGEND_ABOVE, Trace, figure, numbers, scatter, step_mark, step_range
from dashboard.palette import Palette


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


def compare_lines(
    sides: Mapping[str, pd.DataFrame], palette: Palette, *, step: int, height: int = 280
) -> go.Figure:
    """ρ (left) and Δ (right) by step of two sessions; ``sides``: name → turns."""
    looks = ((palette.first, "circle", "solid"), (palette.second, "diamond", "dash"))
    traces: list[Trace] = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "x": steps["step"],
            "y": numbers(steps, column),
            "xaxis": f"x{axis}",
            "yaxis": f"y{axis}",
            "name": name,
            "showlegend": not axis,
            "legendgroup": name,
            "connectgaps": True,
            "line": {"color": colour, "width": 1.8, "dash": dash},
            "marker": {"color": colour, "size": 7, "symbol": symbol},
            "hovertemplate": f"step %{{x}}: {sign} = %{{y}}<extra>%{{fullData.name}}</extra>",
        }
        for (name, steps), (colour, symbol, dash) in zip(sides.items(), looks, strict=False)
        for column, axis, sign in (("residency", "", "ρ"), ("rotary_gap", "2", "Δ"))
    ]
    every = step_range(pd.concat([steps["step"] for steps in sides.values()]))
    x = {"title": {"text": "step"}, "tickformat": "d", "range": every}
    layout = {
        "xaxis": x | {"domain": [0, 0.46]},
        "xaxis2": x | {"domain": [0.56, 1], "anchor": "y2"},
        "yaxis": {"title": {"text": "residency ρ (share)"}, "range": [-0.05, 1.08]}
        | {"tickformat": ".0%"},
        "yaxis2": {"title": {"text": "rotary gap Δ (positions)"}, "anchor": "x2"}
        | {"rangemode": "tozero", "tickformat": ",d"},
        "legend": LEGEND_ABOVE | {"x": 0, "xanchor": "left"},
        "shapes": [step_mark(step, palette, axis) for axis in ("x", "x2")],
    }
    return figure(palette, height, traces, layout)
