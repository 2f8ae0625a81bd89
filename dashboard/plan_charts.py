"""Figures of the plan, of messages over time, and of a renumber."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from dashboard.figure import LEGEND_ABOVE, Trace, figure, step_mark, step_range
from dashboard.palette import SEQUENTIAL, Palette

MAX_ARCS = 600
MAX_ROWS = 40
"""Most messages the map over time shows."""
_ARC_POINTS = 33
_REFERENCE = re.compile(r"step (\d+) .*cannot read step (\d+)")
_TIMES = (
    ("past", "read before"),
    ("now", "read now"),
    ("soon", "read in 1–3 steps"),
    ("later", "read later"),
)


def edges(messages: pd.DataFrame) -> pd.DataFrame:
    """Which step reads which: columns source, reader; each pair once."""
    pairs = sorted(
        {
            (int(step), int(reader))
            for step, readers in zip(messages["step"], messages["readers"], strict=True)
            if not pd.isna(step)
            for reader in readers
        }
    )
    return pd.DataFrame(pairs, columns=["source", "reader"], dtype=int)


def plan_graph(
    messages: pd.DataFrame,
    palette: Palette,
    *,
    step: int,
    unresolved: Sequence[str] = (),
    height: int = 300,
) -> go.Figure:
    """Steps on a line, an arc from each to its readers; a step is coloured by how soon it is read.

    Args:
        messages: lines of ``data.messages``.
        unresolved: references the engine could not resolve, as it words them; those between steps
            are drawn red and dashed.
    """
    pairs = edges(messages)
    pairs = pairs.loc[(pairs["reader"] - step).abs().sort_values(kind="stable").index[:MAX_ARCS]]
    ahead = (pairs["reader"] - step).to_numpy()
    groups = np.select([ahead < 0, ahead == 0, ahead <= 3], ["past", "now", "soon"], "later")
    looks: Mapping[str, dict[str, Any]] = {
        "past": {"color": palette.grid, "width": 1.2},
        "now": {"color": palette.classes[2], "width": 3},
        "soon": {"color": palette.first, "width": 1.8},
        "later": {"color": palette.tint(palette.first, 0.45), "width": 1.2},
    }
    drawn = [(pairs[groups == group], name, looks[group]) for group, name in _TIMES]
    drawn.append(
        (_broken(unresolved), "unresolved", {"color": palette.bad, "width": 2, "dash": "dash"})
    )
    traces: list[Trace] = []
    for some, name, line in drawn:
        x, y = arcs(some)
        if len(x):
            traces.append({"type": "scatter", "mode": "lines", "x": x, "y": y, "name": name})
            traces[-1] |= {"line": line, "hoverinfo": "skip"}
    traces += _nodes(messages, pairs, step, palette)
    layout = {
        "margin": {"t": 30},
        "xaxis": {"title": {"text": "step"}, "showgrid": False, "tickformat": "d"},
        "yaxis": {"title": {"text": "steps between"}, "rangemode": "tozero"},
        "legend": LEGEND_ABOVE,
        "shapes": [step_mark(step, palette)],
    }
    return figure(palette, height, traces, layout)


def arcs(pairs: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Points of a half ellipse per pair, as high as it is long, with a NaN after each."""
    if pairs.empty:
        return np.empty(0), np.empty(0)
    source, reader = (pairs[name].to_numpy(float)[:, None] for name in ("source", "reader"))
    angle = np.linspace(np.pi, 0, _ARC_POINTS)[None]
    middle, half = (source + reader) / 2, (reader - source) / 2
    x, y = middle + half * np.cos(angle), np.abs(2 * half) * np.sin(angle)
    hole = np.full((len(pairs), 1), np.nan)
    return np.hstack([x, hole]).ravel(), np.hstack([y, hole]).ravel()


def history_map(
    held: pd.DataFrame, messages: pd.DataFrame, palette: Palette, *, step: int, height: int = 420
) -> go.Figure:
    """Messages × steps: the share of each message that every layer held after each step.

    Args:
        held: columns message, step, share (0 … 1, worst layer); ``message_history`` makes it.
        messages: the messages to show, at most ``MAX_ROWS``: columns message, role, step, readers.
    """
    steps = np.unique(held["step"])
    rows = {index: row for row, index in enumerate(messages["message"])}
    shares = np.full((len(rows), len(steps)), np.nan, np.float32)
    shares[held["message"].map(rows), np.searchsorted(steps, held["step"])] = held["share"]
    names = [
        f"{row.message} · {row.role}" + ("" if pd.isna(row.step) else f" · step {int(row.step)}")
        for row in messages.itertuples()
    ]
    heat = {
        "type": "heatmap",
        "x": steps,
        "y": names,
        "z": shares,
        "zmin": 0,
        "zmax": 1,
        "xgap": 1,
        "ygap": 1,
        "colorscale": [[0, palette.tint(palette.faint, 0.12)], [1, palette.first]],
        "colorbar": {
            "title": {"text": "resident,<br>worst layer", "font": {"size": 12}},
            "tickformat": ".0%",
            "thickness": 10,
        },
        "hovertemplate": "message %{y} after step %{x}: %{z:.0%} resident<extra></extra>",
    }
    layout = {
        "margin": {"l": 150, "r": 90, "t": 30},
        "xaxis": {"title": {"text": "after step"}, "showgrid": False, "tickformat": "d"}
        | {"range": step_range(pd.Series(steps))},
        "yaxis": {"autorange": "reversed", "showgrid": False, "type": "category"}
        | {"title": {"text": ""}, "dtick": 1},
        "legend": LEGEND_ABOVE | {"y": 1.01},
        "shapes": [step_mark(step, palette)],
    }
    reads = _reads(shares, steps, messages, names, palette)
    return figure(palette, height, [heat, *reads], layout)


def message_history(events: Sequence[Mapping[str, Any]], messages: pd.DataFrame) -> pd.DataFrame:
    """What the ledger's ``residency`` events say of ``messages``: message, step, share.

    A message that an event does not list held nothing, if the event lists all that held something;
    otherwise nothing is said of it.
    """
    lines = []
    for event in events:
        spans = event["data"]["spans"]
        listed = {
            index: least / max(tokens, 1)
            for index, tokens, least in zip(
                spans["message"], spans["tokens"], spans["least"], strict=True
            )
        }
        complete = event["data"]["more_spans"]["spans"] == 0
        for index, start in zip(messages["message"], messages["start"], strict=True):
            if index in listed:
                lines.append((index, event["step"], listed[index]))
            elif complete and start < event["data"]["at"]:
                lines.append((index, event["step"], 0.0))
    return pd.DataFrame(lines, columns=["message", "step", "share"])


def renumber_map(event: Mapping[str, Any], palette: Palette, *, height: int = 340) -> go.Figure:
    """Old against new positions of the kept tokens at one renumber; the dotted line is "unmoved".

    Args:
        event: the ledger's ``renumber`` event with its ``runs``.
    """
    runs, end = event["data"]["runs"], max(event["data"]["before"], 1)
    x, y, words = [], [], []
    for new, count, first, last in zip(
        runs["new"], runs["count"], runs["old_first"], runs["old_last"], strict=True
    ):
        x += [first, last, None]
        y += [new, new + count - 1, None]
        text = f"{count:,} tokens: {first:,}–{last:,} → {new:,}–{new + count - 1:,}"
        words += [text, text, ""]
    unmoved = {
        "type": "scatter",
        "mode": "lines",
        "x": [0, end],
        "y": [0, end],
        "name": "unmoved",
        "line": {"color": palette.faint, "width": 1, "dash": "dot"},
        "hoverinfo": "skip",
    }
    kept = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": x,
        "y": y,
        "name": "kept tokens",
        "line": {"color": palette.first, "width": 3},
        "marker": {"size": 4},
        "text": words,
        "hovertemplate": "%{text}<extra></extra>",
    }
    axis = {"tickformat": ",d", "range": [0, end * 1.02]}
    layout = {
        "margin": {"t": 30},
        "xaxis": axis | {"title": {"text": "position before (tokens)"}},
        "yaxis": axis | {"title": {"text": "position after (tokens)"}},
        "legend": LEGEND_ABOVE,
    }
    return figure(palette, height, [unmoved, kept], layout)


def _broken(unresolved: Sequence[str]) -> pd.DataFrame:
    """The unresolved references that are between steps."""
    found = [match.groups() for match in map(_REFERENCE.match, unresolved) if match]
    pairs = [(int(source), int(reader)) for reader, source in found]
    return pd.DataFrame(pairs, columns=["source", "reader"])


def _nodes(messages: pd.DataFrame, pairs: pd.DataFrame, step: int, palette: Palette) -> list[Trace]:
    """A marker per step; its colour is the distance to its next use."""
    known = {int(value) for value in messages["step"].dropna()} | set(pairs["reader"])
    upcoming = pairs[pairs["reader"] >= step].groupby("source")["reader"].min()
    nodes = pd.DataFrame({"step": sorted(known)})
    nodes["away"] = nodes["step"].map(upcoming) - step
    scale = [[i / (len(SEQUENTIAL) - 1), colour] for i, colour in enumerate(SEQUENTIAL)]
    coloured = {
        "size": 11,
        "color": nodes["away"].dropna(),
        "colorscale": scale,
        "reversescale": True,  # bright: soon
        "cmin": 0,
        "line": {"width": 1, "color": palette.text},
        "colorbar": {"title": {"text": "steps until<br>read"}, "thickness": 10},
    }
    read = nodes["away"].notna()
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "x": part["step"],
            "y": np.zeros(len(part)),
            "showlegend": False,
            "marker": marker,
            "text": [_when(away) for away in part["away"]],
            "hovertemplate": "step %{x}: %{text}<extra></extra>",
            "cliponaxis": False,
        }
        for part, marker in (
            (nodes[~read], {"size": 6, "color": palette.faint}),
            (nodes[read], coloured),
        )
    ]


def _when(away: float) -> str:
    if pd.isna(away):
        return "read by no step to come"
    return "read now" if away == 0 else f"read in {int(away)} steps"


def _reads(
    shares: np.ndarray,
    steps: np.ndarray,
    messages: pd.DataFrame,
    names: Sequence[str],
    palette: Palette,
) -> list[Trace]:
    """A sign where a step read a message: was it there?"""
    column = {int(step): at for at, step in enumerate(steps)}
    places = [
        (reader, names[row], bool(shares[row, column[reader]] >= 1))
        for row, readers in enumerate(messages["readers"])
        for reader in readers
        if reader in column
    ]
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [reader for reader, _, whole in places if whole == good],
            "y": [name for _, name, whole in places if whole == good],
            "name": label,
            "marker": {"symbol": sign, "size": 8, "color": colour}
            | {"line": {"width": 1, "color": colour}},
            "hovertemplate": "step %{x} read message %{y}<extra></extra>",
        }
        for good, sign, colour, label in (
            (True, "circle-open", palette.background, "read, whole"),
            (False, "x", palette.bad, "read, not whole"),
        )
    ]
