"""The residency map: arrays and data frames in, a description of a drawing out; nothing is read or
drawn.

It is drawn by ``residency_map.js``, an image and a few lines of text: Plotly's script is megabytes,
which a session's page would wait for before it showed anything.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from dashboard.data import Bins
from dashboard.palette import CLASSES, Palette

ColourBy = Literal["class", "share", "next use", "score"]
COLOUR_BY: tuple[ColourBy, ...] = ("class", "share", "next use", "score")
SHADES = 8
"""Shades of a class: how much of a bin is resident."""
RAMP = 64
"""Colours of a magnitude's scale."""
EMPTY = 255
"""The cell of a bin of which nothing is resident."""
_NAMED_STEPS = 45
_TICKS = 9

Drawing = dict[str, Any]
"""What ``residency_map.js`` draws, JSON:

``height`` in CSS pixels, without the legend; ``label``: all of it in words; ``layers``; ``edges``:
logical positions [N + 1]; ``cells``: base64 of uint8 [layers, N], indices into ``colours``,
``EMPTY`` where nothing is; ``counts``: base64 of little-endian uint32 [layers, N], resident tokens;
``kinds``: a name per ``shades`` colours, or nothing; ``x``, ``y`` and ``steps``: axes, each with
``title`` and ``ticks`` (place, text); ``marks``: above the cells, each with ``at``, ``whole`` and
``text``; ``selected``: [start, end) or null; ``legend``: (colour, text) each; ``scale``: title and
ends of a magnitude's colours, or null; ``note``: on the marks; ``look``: colours of text and lines;
``zoomable``: a drag over a range asks for it.
"""


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
    height: int = 272,
    zoomable: bool = True,
) -> Drawing:
    """Layers × logical positions: what each layer holds.

    Args:
        colour_by: ``class`` (hue by class, shade by the resident share of the bin), ``share``,
            ``next use`` (steps until it is read) or ``score``.
        step_starts: step → its first logical position; named along the top.
        needed: messages that the step reads (columns message, start, end, tokens, least).
        selected: logical positions [start, end) of the message looked at.
        legend: explain classes and marks below.
        height: CSS pixels, without the legend.
        zoomable: tell of a range that is dragged over.
    """
    layers, view = len(bins.counts), (int(bins.edges[0]), int(bins.edges[-1]))
    if colour_by == "class":
        cells, colours = _class_cells(bins, palette)
        kinds, scale = list(CLASSES), None
    else:
        cells, colours, scale = _magnitudes(bins, palette, colour_by, step)
        kinds = []
    marks = _marks(needed, view)
    return {
        "height": height,
        "label": _label(layers, view, step, needed),
        "layers": layers,
        "edges": bins.edges.tolist(),
        "cells": _base64(cells.astype(np.uint8)),
        "counts": _base64(bins.counts.astype("<u4")),
        "colours": colours,
        "kinds": kinds,
        "shades": SHADES,
        "x": {
            "title": f"logical position (tokens), after step {step}",
            "ticks": [[at, f"{at:,}"] for at in ticks(*view)],
        },
        "y": {"title": "layer", "ticks": [[at, str(at)] for at in ticks(0, layers - 1)]},
        "steps": {
            "title": "step that wrote it",
            "ticks": [[start, str(name)] for name, start in _spaced(step_starts or {}, view)],
        },
        "marks": marks,
        "selected": None if selected is None else list(selected),
        "legend": [list(pair) for pair in zip(palette.classes, CLASSES, strict=True)]
        if legend and kinds
        else [],
        "scale": scale,
        "note": "▼ ✕ needed now: whole, not whole" if legend and marks else "",
        "look": {
            name: getattr(palette, name)
            for name in ("text", "faint", "grid", "background", "good", "bad")
        },
        "zoomable": zoomable,
    }


def ticks(low: int, high: int) -> list[int]:
    """At most nine whole, round numbers from ``low`` to ``high``, equally far apart."""
    size, tenth = 1, 1
    while high // size - -(-low // size) + 1 > _TICKS:
        if size == 5 * tenth:
            tenth *= 10
            size = tenth
        else:
            size = 2 * tenth if size == tenth else 5 * tenth
    return list(range(-(-low // size) * size, high + 1, size))


def _base64(array: npt.NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def _share(bins: Bins) -> npt.NDArray[np.float64]:
    """Resident tokens ÷ tokens of each bin."""
    return np.clip(bins.counts / np.maximum(np.diff(bins.edges), 1), 0, 1)


def _class_cells(bins: Bins, palette: Palette) -> tuple[npt.NDArray[Any], list[str]]:
    """Cells coloured by class and shade."""
    shade = np.maximum(np.ceil(_share(bins) * SHADES) - 1, 0)  # any token at all shows
    cells = np.where(bins.classes >= 0, bins.classes * SHADES + shade, EMPTY)
    colours = [
        palette.tint(colour, 0.12 + 0.88 * ((n + 1) / SHADES) ** 0.8)
        for colour in palette.classes
        for n in range(SHADES)
    ]
    return cells, colours


def _magnitudes(
    bins: Bins, palette: Palette, colour_by: ColourBy, step: int
) -> tuple[npt.NDArray[Any], list[str], dict[str, Any]]:
    """Cells coloured by a number, with its scale."""
    colours = palette.ramp(RAMP)
    shown = bins.counts > 0
    if colour_by == "share":
        values, title = _share(bins), "resident share"
    elif colour_by == "next use":
        values, title = bins.next_use - step, "steps until it is read"
        colours.reverse()  # bright: soon
    else:
        with np.errstate(divide="ignore", invalid="ignore"):
            values, title = np.log10(np.maximum(bins.score, 1e-6)), "score (log₁₀)"
    shown = shown & np.isfinite(values)
    low, high = (0.0, 1.0) if colour_by == "share" else _limits(values[shown], colour_by)
    place = np.clip((np.where(shown, values, low) - low) / ((high - low) or 1.0), 0, 1)
    cells = np.where(shown, np.minimum(place * RAMP, RAMP - 1).astype(int), EMPTY)
    form = ",.0f" if colour_by == "next use" else ".3g"
    ends = [format(end, form) if shown.any() else "–" for end in (low, high)]
    return cells, colours, {"title": title, "ends": ends}


def _limits(values: npt.NDArray[np.float64], colour_by: ColourBy) -> tuple[float, float]:
    if not len(values):
        return 0.0, 1.0
    if colour_by == "next use":
        return 0.0, max(0.0, float(values.max()))
    return float(values.min()), float(values.max())


def _spaced(starts: Mapping[int, int], view: tuple[int, int]) -> list[tuple[int, int]]:
    """Steps in view and their first positions; one too close to the last named is left out."""
    low, high = view
    room, last, shown = (high - low) / _NAMED_STEPS, -float("inf"), []
    for step, start in sorted(starts.items()):
        if low <= start < high and start - last >= room:
            shown.append((step, start))
            last = start
    return shown


def _label(layers: int, view: tuple[int, int], step: int, needed: pd.DataFrame | None) -> str:
    """The map in a sentence, for who does not see it."""
    text = f"What {layers} layers hold of tokens {view[0]:,} to {view[1]:,} after step {step}."
    if needed is None or needed.empty:
        return text
    whole = int((needed["least"] >= needed["tokens"]).sum())
    return f"{text} Of {len(needed)} messages that the step reads {whole} are whole in all layers."


def _marks(needed: pd.DataFrame | None, view: tuple[int, int]) -> list[dict[str, Any]]:
    """One above each needed message that is in view; another sign where some of it is gone."""
    if needed is None or needed.empty:
        return []
    centres = (needed["start"] + needed["end"]) / 2
    return [
        {
            "at": float(centre),
            "whole": bool(row["least"] >= row["tokens"]),
            "text": f"message {row['message']}, needed now: {row['least']:,} of "
            f"{row['tokens']:,} tokens resident",
        }
        for centre, row in zip(centres, needed.to_dict("records"), strict=True)
        if view[0] <= centre < view[1]
    ]
