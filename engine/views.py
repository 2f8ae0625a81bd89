"""What readers see of residents: layer by layer, in bins, token by token, message by message."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.paging import PAGE_BYTES, json_bytes, page
from engine.residents import Floats, Ints, Residents
from engine.retention import NO_USE
from engine.types import CLASSES, Window

_DIGITS = 6


def layer_rows(whole: Residents, window: Window, first: int, last: int) -> dict[str, Any]:
    """``data``: the resident tokens of the layers ``first`` … ``last``, as many layers as fit a
    page. ``next_layer`` is the first that did not; ``next`` the logical position behind the page
    when it holds a part of one layer only."""
    layers = range(first, min(last, whole.layers - 1) + 1)
    rows = page(_layer(whole, layer, window) for layer in layers)
    following = first + len(rows)
    found: dict[str, Any] = {
        "data": rows,
        "next_layer": following if following <= layers.stop - 1 else None,
        "next": None,
    }
    if len(rows) == 1 and json_bytes(rows) > PAGE_BYTES:
        columns = {key: value for key, value in rows[0].items() if key != "layer"}
        fits = len(page(zip(*columns.values(), strict=True)))
        cut = {key: value[:fits] for key, value in columns.items()}
        found |= {"data": [{"layer": first, **cut}], "next_layer": first}
        found["next"] = columns["logical"][fits]
    return found


def _layer(whole: Residents, layer: int, window: Window) -> dict[str, Any]:
    start, end = np.searchsorted(whole.logical[layer], window.within(whole.tokens))
    logical = whole.logical[layer, start:end]
    physical = whole.physical
    return {
        "layer": layer,
        "logical": logical.tolist(),
        "physical": [None] * len(logical)
        if physical is None
        else physical[layer, start:end].tolist(),
        "score": scores(whole.score[layer, start:end]),
        "class": whole.classes(logical).tolist(),
        "next_use": uses(whole.next_use(logical)),
    }


def binned(whole: Residents, window: Window, bins: int, first: int, last: int) -> dict[str, Any]:
    """``bins``: what the layers ``first`` … ``last`` hold in (at most) ``bins`` equal parts of the
    window, as many layers as fit a page; ``next_layer`` is the first that did not."""
    start, end = window.within(whole.tokens)
    count = min(bins, end - start)
    edges = start + np.arange(count + 1) * (end - start) // max(count, 1)
    layers = range(first, min(last, whole.layers - 1) + 1)
    rows = page(_bins(whole, layer, edges) for layer in layers)
    following = first + len(rows)
    names = ("counts", "class", "next_use", "score")
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], [], []]
    return {
        "bins": {"edges": edges.tolist(), **dict(zip(names, columns, strict=True))},
        "next_layer": following if following <= layers.stop - 1 else None,
        "next": None,
    }


def _bins(whole: Residents, layer: int, edges: Ints) -> tuple[list[Any], ...]:
    """Per bin of one layer: tokens, most frequent class (-1: empty; equal numbers: the first),
    soonest next use, highest score."""
    inside = slice(*np.searchsorted(whole.logical[layer], (edges[0], edges[-1])))
    logical, score = whole.logical[layer, inside], whole.score[layer, inside]
    count, kinds = len(edges) - 1, len(CLASSES)
    at = np.searchsorted(edges, logical, side="right") - 1
    of_kind = np.bincount(at * kinds + whole.classes(logical), minlength=count * kinds)
    of_kind = of_kind.reshape(count, kinds)
    counts = of_kind.sum(axis=1)
    soonest, highest = np.full(count, NO_USE), np.full(count, np.nan)
    if len(at):
        heads = np.flatnonzero(np.diff(at, prepend=-1))
        soonest[at[heads]] = np.minimum.reduceat(whole.next_use(logical), heads)
        highest[at[heads]] = np.maximum.reduceat(score, heads)
    dominant = np.where(counts > 0, of_kind.argmax(axis=1), -1)
    return counts.tolist(), dominant.tolist(), uses(soonest), scores(highest)


def resident_tokens(whole: Residents, window: Window, most: int) -> dict[str, list[Any]]:
    """The first ``most`` tokens of the window that any layer holds, as columns: ``logical``, how
    many ``layers`` hold it, lowest ``physical`` position and highest ``score`` over layers,
    ``class`` and ``next_use``."""
    start, end = window.within(whole.tokens)
    held = (whole.logical >= start) & (whole.logical < end)
    every = whole.logical[held]
    order = every.argsort(kind="stable")
    every = every[order]
    heads = np.flatnonzero(np.diff(every, prepend=-1))
    ends = np.append(heads[1:], len(every))[:most]
    heads = heads[:most]
    logical = every[heads]
    physical: list[int | None] = [None] * len(heads)
    if whole.physical is not None and len(heads):
        physical = np.minimum.reduceat(whole.physical[held][order], heads).tolist()
    highest = np.maximum.reduceat(whole.score[held][order], heads) if len(heads) else logical
    return {
        "logical": logical.tolist(),
        "layers": (ends - heads).tolist(),
        "physical": physical,
        "class": whole.classes(logical).tolist(),
        "next_use": uses(whole.next_use(logical)),
        "score": scores(highest.astype(np.float64)),
    }


def resident_of(whole: Residents, bounds: Ints) -> list[list[int]]:
    """[Least, most] over layers of the resident tokens between each two of ``bounds``, which
    rise."""
    at = np.stack([np.searchsorted(layer, bounds) for layer in whole.logical])
    counts = np.diff(at, axis=1)
    found: list[list[int]] = np.stack((counts.min(axis=0), counts.max(axis=0)), axis=1).tolist()
    return found


def uses(values: Ints) -> list[int | None]:
    """Next uses; None for none."""
    return [None if value == NO_USE else value for value in values.tolist()]


def scores(values: Floats) -> list[float | None]:
    """Scores to six digits; None for what is no number."""
    sound = np.where(np.isfinite(values) & (values != 0), values, 1.0)
    shift = np.clip(_DIGITS - 1 - np.floor(np.log10(np.abs(sound))), -290, 290)
    # two whole powers of ten: negative ones are not exact
    up, down = 10.0 ** np.maximum(shift, 0), 10.0 ** np.maximum(-shift, 0)
    rounded = np.where(values == 0, 0.0, np.round(sound * up / down) * down / up)
    rounded = np.where(np.isfinite(values), rounded, np.nan)
    return [None if value != value else value for value in rounded.tolist()]
