"""Residents packed and unpacked, what a history keeps within its bytes, pages below 1 MB."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from engine.errors import StepNotFound
from engine.history import History, StepRow
from engine.paging import json_bytes, page
from engine.plan import Interval, Plan
from engine.residents import PackedResidents, Residents, interval_array
from engine.types import Window
from engine.views import binned, layer_rows, resident_tokens, scores

MEGABYTE = 1_000_000
NO_USE = 1 << 40


def residents(
    step: int = 1, layers: int = 3, count: int = 40, length: int = 5_000, seed: int = 0
) -> Residents:
    draw = random.Random(seed + step)
    logical = [sorted(draw.sample(range(length), count)) for _ in range(layers)]
    scored = [[draw.choice((0.0, 10 ** draw.uniform(-9, 7))) for _ in row] for row in logical]
    intervals = [Interval(10, 400, 7), Interval(900, 1000, 9), Interval(10**9, 10**9 + 5, 3)]
    return Residents(
        step=step,
        turn=step,
        at=length,
        tokens=length + 3,
        messages=2 * step,
        sinks=4,
        recent=16,
        logical=np.array(logical, np.int64).reshape(layers, count),
        physical=np.array(logical, np.int64).reshape(layers, count),
        score=np.array(scored, np.float64).reshape(layers, count),
        intervals=interval_array(intervals),
        plan=Plan({1: (7, 9)}, {4: (3,)}),
    )


@pytest.mark.parametrize("length", [50, 5_000, 10_000_000, 1 << 34])
def test_packing_keeps_every_position(length: int) -> None:
    whole = residents(length=length)
    found = PackedResidents.of(whole).unpack()
    assert np.array_equal(found.logical, whole.logical) and found.physical is None
    assert np.array_equal(found.next_use(whole.logical), whole.next_use(whole.logical))
    assert np.array_equal(found.classes(whole.logical), whole.classes(whole.logical))
    assert np.array_equal(found.score == 0, whole.score == 0)
    assert found.score == pytest.approx(whole.score, rel=0.08)
    same = ("step", "turn", "at", "tokens", "messages", "sinks", "recent", "plan")
    assert all(getattr(found, name) == getattr(whole, name) for name in same)


@pytest.mark.parametrize("values", [[0.0, 0.0], [3.5, 3.5], [1e-30, 1e30]])
def test_packing_extreme_scores(values: list[float]) -> None:
    whole = replace(
        residents(layers=1, count=2), score=np.array([values]), logical=np.array([[3, 8]])
    )
    assert PackedResidents.of(whole).unpack().score[0].tolist() == pytest.approx(values, rel=1e-3)


def test_packing_nothing() -> None:
    whole = replace(residents(count=0), intervals=interval_array([]), plan=Plan())
    found = PackedResidents.of(whole).unpack()
    assert found.logical.shape == (3, 0) and found.by_class() == (0.0, 0.0, 0.0, 0.0)
    assert resident_tokens(whole, Window(), 10)["logical"] == []
    assert binned(whole, Window(), 4, 0, 2)["bins"]["class"] == [[-1] * 4] * 3


def test_a_summary_is_small() -> None:
    """A budget of 1,024 on 30 layers that agree on nothing takes less than 64 KB, and a session
    of 10,000,000 tokens no more than 10 KB beyond one of 20,000."""
    short, long = (
        PackedResidents.of(residents(layers=30, count=1024, length=length)).size
        for length in (20_000, 10_000_000)
    )
    assert short < 64_000 and long < 64_000 + 30 * 1024


def row_of(view: Residents, first: int) -> StepRow:
    numbers = dict.fromkeys(StepRow.__slots__, 0) | {"step": view.step, "turn": view.turn}
    more: dict[str, Any] = {"by_class": (0.0,) * 4, "times": (), "first": first}
    more |= dict.fromkeys(("unresolved", "read_steps", "read_messages"), ())
    return StepRow(**{**numbers, **more, "end": view.messages})  # type: ignore[arg-type]


def filled(limit: int, steps: int, rows: int = 1000) -> History:
    history = History(rows, limit)
    for step in range(1, steps + 1):
        view = residents(step)
        history.add(row_of(view, view.messages - 2), view)
    return history


def test_a_history_stays_within_its_bytes_and_reaches_far_back() -> None:
    one = PackedResidents.of(residents()).size
    history = filled(20 * one, 300)
    assert history.size <= 20 * one
    held = [row.step for row, held in history.since(0) if held]
    assert held[-5:] == [296, 297, 298, 299, 300], "the newest are all there"
    assert 10 <= len(held) <= 22 and held[0] == 1, "and some that are old"
    gaps = [b - a for a, b in pairwise(held)]
    assert max(gaps) < 150 and gaps[0] > gaps[-1] == 1
    for step in held:
        assert history.at(step).step == step
    with pytest.raises(StepNotFound):
        history.at(next(step for step in range(1, 300) if step not in held))
    tiny = filled(10, 5)
    assert tiny.size == 0 and [held for _, held in tiny.since(0)] == [False] * 4 + [True]


def test_rows_are_bounded_and_found_by_turn() -> None:
    history = filled(0, 12, rows=5)
    assert [row.turn for row, _ in history.since(0)] == [8, 9, 10, 11, 12]
    assert [row.turn for row, _ in history.since(10)] == [11, 12]
    assert history.since(12) == [] and history.last is not None and history.last.turn == 12


def test_a_redone_turn_is_not_kept() -> None:
    history = filled(1 << 20, 4)
    again = replace(residents(4, seed=9), turn=5)
    history.add(row_of(again, again.messages - 2), again)
    assert [row.turn for row, _ in history.since(0)] == [1, 2, 3, 5]
    assert history.at(4) is again and history.at(None) is again
    assert np.array_equal(
        PackedResidents.of(residents(3)).unpack().logical,
        history.at(3).unpack().logical,  # type: ignore[union-attr]
    )


def test_scores_have_six_digits() -> None:
    draw = random.Random(5)
    values = [draw.uniform(0, 1) * 10 ** draw.randint(-12, 12) for _ in range(500)]
    found = scores(np.array([*values, 0.0, np.nan, np.inf]))
    assert found[-3:] == [0.0, None, None]
    assert found[:-3] == [float(f"{value:.6g}") for value in values]


WORST = ["\x00", "\x1f" * 16, '"\\' * 30, "\u2028", "\U0001f600" * 40, "\ufffd", "x" * 120]


def test_pages_are_below_a_megabyte_with_the_worst_texts() -> None:
    """Control characters take six bytes each; a page is cut by what is sent, not by characters."""
    draw = random.Random(1)
    texts = [draw.choice(WORST) for _ in range(30_000)]
    numbers = list(range(len(texts)))
    seen = 0
    while seen < len(texts):
        rows = page(zip(numbers[seen:], texts[seen:], strict=True))
        columns = {"logical": [n for n, _ in rows], "text": [text for _, text in rows]}
        sent = json.dumps(columns, ensure_ascii=False, separators=(",", ":")).encode()
        assert len(sent) < 900_100
        seen += len(rows)
        assert len(sent) > 850_000 or seen == len(texts), "and is filled"
    assert json_bytes("\x00" * 10) == 62 and json_bytes({"é": ["\U0001f600"]}) == 15


def test_no_layer_is_too_large() -> None:
    """80 layers of 1,024 bins, and rows of 60,000 slots, come in pages that are all of them."""
    wide = residents(layers=80, count=3000, length=9_000_000)
    rows, layer = 0, 0
    while True:
        found = binned(wide, Window(), 1024, layer, 79)
        assert json_bytes(found) < MEGABYTE
        rows += len(found["bins"]["counts"])
        if found["next_layer"] is None:
            break
        assert found["next_layer"] == rows
        layer = found["next_layer"]
    assert rows == 80
    deep = residents(layers=2, count=60_000, length=10_000_000)
    logical: list[list[int]] = [[], []]
    layer, last, start, pages = 0, 1, 0, 0
    while layer is not None:
        found = layer_rows(deep, Window(start), layer, last)
        assert json_bytes(found) < MEGABYTE
        pages += 1
        for row in found["data"]:
            logical[row["layer"]] += row["logical"]
        if found["next"] is not None:  # the rest of this layer alone, then the ones behind it
            assert len(found["data"]) == 1 and found["next_layer"] == layer
            start, last = found["next"], layer
        elif last == 1:
            layer = found["next_layer"]
        else:
            layer, start, last = layer + 1, 0, 1
    assert logical == deep.logical.tolist() and pages > 2
