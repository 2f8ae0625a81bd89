"""What all figures share: the look, axes over steps, and small helpers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from dashboard.palette import Palette

CONFIG = {"displaylogo": False, "modeBarButtonsToRemove": ["lasso2d", "select2d", "autoScale2d"]}
"""Options of every chart."""
LEGEND_ABOVE = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 1, "xanchor": "right"}
_FONT = "Source Sans, sans-serif"
_POINTS_AS_SVG = 500
"""Up to this many points SVG draws faster than a WebGL context starts."""

Trace = dict[str, Any]


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
