"""The figures: what they draw is what they were given."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from dashboard import charts, plan_charts, step_charts
from dashboard.data import Bins
from dashboard.palette import CLASSES, DARK, LIGHT, SEQUENTIAL, Palette

# Two layers, three bins of ten tokens: layer 0 holds all ten sinks, nothing, five protected ones.
BINS = Bins(
    edges=np.array([0, 10, 20, 30]),
    counts=np.array([[10, 0, 5], [10, 1, 0]]),
    classes=np.array([[0, -1, 2], [0, 3, -1]]),
    next_use=np.array([[np.nan, np.nan, 12.0], [np.nan, np.nan, np.nan]]),
    score=np.array([[1.0, np.nan, 0.1], [10.0, 100.0, np.nan]]),
    resolution="exact",
    at=30,
)
STEPS = pd.DataFrame(
    {
        "step": [1, 2, 3, 4],
        "residency": [None, 1.0, 0.5, None],
        "rotary_gap": [None, 100, 300, None],
        "renumbers": [0, 2, 0, 1],
    }
)
MESSAGES = pd.DataFrame(
    [
        {"message": 0, "role": "system", "step": None, "readers": [], "start": 0, "end": 5},
        {"message": 1, "role": "user", "step": 1, "readers": [3, 9], "start": 5, "end": 9},
        {"message": 2, "role": "user", "step": 2, "readers": [3], "start": 9, "end": 20},
        {"message": 3, "role": "user", "step": 3, "readers": [], "start": 20, "end": 30},
    ]
).assign(tokens=[5, 4, 11, 10], least=[5, 4, 3, 10])


def named(figure: Any, name: str) -> Any:
    (trace,) = [trace for trace in figure.data if trace.name == name]
    return trace


def cells(drawing: charts.Drawing) -> npt.NDArray[np.uint8]:
    """Indices into the colours, a line per layer."""
    found = np.frombuffer(base64.b64decode(drawing["cells"]), np.uint8)
    return found.reshape(drawing["layers"], len(drawing["edges"]) - 1)


def test_a_cell_has_the_shade_of_its_class_and_share() -> None:
    drawing = charts.residency_map(BINS, LIGHT, step=3)
    found, colours = cells(drawing), drawing["colours"]
    # all of the bin: the full colour of class 0
    assert colours[found[0, 0]] == colours[found[1, 0]] == LIGHT.classes[0]
    assert found[0, 1] == found[1, 2] == charts.EMPTY >= len(colours)
    # half of it: the fourth of eight shades of class 2; a single token still shows
    assert found[0, 2] == 2 * charts.SHADES + 3
    assert found[1, 1] == 3 * charts.SHADES
    assert colours[found[1, 1]] not in (LIGHT.background, LIGHT.classes[3])
    assert drawing["kinds"] == list(CLASSES) and drawing["scale"] is None
    assert drawing["legend"] == [[c, n] for c, n in zip(LIGHT.classes, CLASSES, strict=True)]


def test_the_map_tells_how_many_tokens_a_cell_holds() -> None:
    many = replace(BINS, counts=BINS.counts * 100_000)
    drawing = charts.residency_map(many, LIGHT, step=3)
    found = np.frombuffer(base64.b64decode(drawing["counts"]), "<u4").reshape(2, 3)
    assert found.tolist() == [[1_000_000, 0, 500_000], [1_000_000, 100_000, 0]]
    assert drawing["edges"] == [0, 10, 20, 30] and drawing["layers"] == 2


@pytest.mark.parametrize(
    ("colour_by", "ends", "places"),
    [
        ("share", ["0", "1"], {(0, 0): 1.0, (0, 2): 0.5, (1, 0): 1.0, (1, 1): 0.1}),
        # the only number there is; bright, so first, is what is read soon
        ("next use", ["0", "9"], {(0, 2): 1.0}),
        ("score", ["-1", "2"], {(0, 0): 1 / 3, (0, 2): 0.0, (1, 0): 2 / 3, (1, 1): 1.0}),
    ],
)
def test_a_cell_has_the_colour_of_its_number(
    colour_by: charts.ColourBy, ends: list[str], places: dict[tuple[int, int], float]
) -> None:
    drawing = charts.residency_map(BINS, LIGHT, step=3, colour_by=colour_by)
    assert drawing["scale"]["ends"] == ends and not drawing["legend"]
    found = cells(drawing)
    assert {(int(a), int(b)) for a, b in np.argwhere(found != charts.EMPTY)} == set(places)
    for at, place in places.items():
        assert found[at] == pytest.approx(place * charts.RAMP, abs=1), at
    bright = -1 if colour_by != "next use" else 0
    assert drawing["colours"][bright] == SEQUENTIAL[-1]


def test_numbers_that_are_all_equal_or_absent_have_a_scale_too() -> None:
    same = replace(BINS, score=np.where(BINS.counts > 0, 1.0, np.nan))
    assert (
        charts.residency_map(same, LIGHT, step=3, colour_by="score")["scale"]["ends"] == ["0"] * 2
    )
    for read_at, ends in ((1503, ["0", "1,500"]), (2, ["0", "0"])):
        late = replace(BINS, next_use=np.where(BINS.counts > 0, read_at, np.nan))
        drawing = charts.residency_map(late, LIGHT, step=3, colour_by="next use")
        assert drawing["scale"]["ends"] == ends
    none = replace(BINS, next_use=np.full((2, 3), np.nan))
    drawing = charts.residency_map(none, LIGHT, step=3, colour_by="next use")
    assert (cells(drawing) == charts.EMPTY).all() and drawing["scale"]["ends"] == ["–", "–"]


def test_axes_have_titles_with_units() -> None:
    drawing = charts.residency_map(BINS, LIGHT, step=3, step_starts={1: 0, 2: 9})
    assert drawing["x"]["title"] == "logical position (tokens), after step 3"
    assert drawing["y"] == {"title": "layer", "ticks": [[0, "0"], [1, "1"]]}
    assert drawing["steps"]["ticks"] == [[0, "1"], [9, "2"]]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 0, [0]),
        (0, 8, [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        (0, 9, [0, 2, 4, 6, 8]),
        (0, 35, [0, 5, 10, 15, 20, 25, 30, 35]),
        (525, 9278, [1000, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000]),
        (0, 199_917, [0, 50_000, 100_000, 150_000]),
        (41, 44, [41, 42, 43, 44]),
    ],
)
def test_ticks_are_round_and_few(low: int, high: int, expected: list[int]) -> None:
    assert charts.ticks(low, high) == expected


def test_steps_too_close_to_be_named_are_left_out() -> None:
    starts = {step: 2 * step for step in range(1, 400)}
    wide = Bins(np.array([0, 900]), *(np.zeros((1, 1)) for _ in range(4)), "exact", 900)
    found = charts.residency_map(wide, LIGHT, step=3, step_starts=starts)["steps"]["ticks"]
    assert min(np.diff([at for at, _ in found])) >= 900 / 45


def test_what_is_needed_and_gone_is_marked() -> None:
    drawing = charts.residency_map(BINS, LIGHT, step=3, needed=MESSAGES.iloc[1:3], selected=(9, 20))
    assert [(mark["at"], mark["whole"]) for mark in drawing["marks"]] == [
        (7.0, True),
        (14.5, False),
    ]
    assert drawing["marks"][1]["text"] == "message 2, needed now: 3 of 11 tokens resident"
    assert drawing["selected"] == [9, 20]
    assert drawing["label"].endswith("Of 2 messages that the step reads 1 are whole in all layers.")
    none = charts.residency_map(BINS, LIGHT, step=3)
    assert none["marks"] == [] and none["note"] == ""
    assert none["label"] == "What 2 layers hold of tokens 0 to 30 after step 3."


@pytest.mark.parametrize("colour_by", charts.COLOUR_BY)
def test_marks_are_explained_under_every_colouring(colour_by: charts.ColourBy) -> None:
    given = {"step": 3, "colour_by": colour_by, "needed": MESSAGES.iloc[1:3]}
    assert "needed now" in charts.residency_map(BINS, LIGHT, **given)["note"]
    assert charts.residency_map(BINS, LIGHT, **given, legend=False)["note"] == ""


def test_what_is_out_of_view_is_not_marked() -> None:
    some = MESSAGES.iloc[1:3].assign(start=[5, 40], end=[9, 60])
    assert len(charts.residency_map(BINS, LIGHT, step=3, needed=some)["marks"]) == 1


def test_a_drawing_is_json() -> None:
    for colour_by in charts.COLOUR_BY:
        drawing = charts.residency_map(
            BINS, DARK, step=3, colour_by=colour_by, needed=MESSAGES, step_starts={1: 0}
        )
        assert json.loads(json.dumps(drawing, allow_nan=False)) == drawing


def test_steps_show_rho_gap_renumbers_and_the_limit() -> None:
    figure = step_charts.step_lines(STEPS, LIGHT, step=3, limit=2048)
    rho, gap = named(figure, "residency ρ"), named(figure, "rotary gap Δ")
    assert list(rho.y)[1:3] == [1.0, 0.5] and np.isnan(rho.y[0])
    assert list(rho.marker.symbol) == ["circle", "circle", "x", "circle"]
    assert list(gap.y)[1:3] == [100, 300]
    assert list(named(figure, "renumbered").x) == [2, 4]
    assert figure.layout.annotations[0].text == "position limit L = 2,048"
    assert {shape.x0 for shape in figure.layout.shapes} == {3, 0}


def test_steps_without_a_limit_or_a_need_are_drawn() -> None:
    nothing = STEPS.assign(residency=None, rotary_gap=None, renumbers=0)
    figure = step_charts.step_lines(nothing, LIGHT, step=1, limit=None)
    assert not figure.layout.annotations and len(figure.layout.shapes) == 1


def test_many_points_are_drawn_on_a_canvas() -> None:
    many = pd.concat([STEPS] * 300, ignore_index=True)
    kinds = {trace.type for trace in step_charts.step_lines(many, LIGHT, step=3, limit=None).data}
    assert kinds == {"scattergl"}


def test_the_plan_is_pairs_of_steps() -> None:
    pairs = plan_charts.edges(MESSAGES)
    assert pairs.to_numpy().tolist() == [[1, 3], [1, 9], [2, 3]]
    assert plan_charts.edges(MESSAGES.iloc[:1]).empty


def test_an_arc_leads_from_the_step_to_its_reader() -> None:
    x, y = plan_charts.arcs(plan_charts.edges(MESSAGES))
    first, ends = x[: np.flatnonzero(np.isnan(x))[0]], np.flatnonzero(np.isnan(x))
    assert (first[0], first[-1]) == (1, 3) and len(ends) == 3
    assert y[0] == pytest.approx(0) and np.nanmax(y) == pytest.approx(9 - 1)


def test_plan_colours_say_when() -> None:
    unresolved = ["step 8 cannot read step 5: it does not exist", "message 90 does not exist"]
    figure = plan_charts.plan_graph(MESSAGES, LIGHT, step=3, unresolved=unresolved)
    now, later = named(figure, "read now"), named(figure, "read later")
    assert {now.x[0], later.x[0]} == {1.0} and np.nanmax(later.x) == 9
    broken = named(figure, "unresolved")
    assert (broken.x[0], np.nanmax(broken.x)) == (5, 8)
    assert (broken.line.color, broken.line.dash) == (LIGHT.bad, "dash")
    unread, read = figure.data[-2:]
    assert list(read.x) == [1, 2] and list(read.marker.color) == [0, 0]
    assert list(unread.x) == [3, 9]


def test_a_large_plan_is_drawn_in_part() -> None:
    large = MESSAGES.iloc[1:2].assign(readers=[list(range(2, 2000))])
    x = named(plan_charts.plan_graph(large, LIGHT, step=1000), "read later").x
    assert np.isnan(x).sum() < plan_charts.MAX_ARCS


def residency_event(step: int, at: int, listed: dict[int, tuple[int, int]], more: int = 0) -> Any:
    spans = {
        "message": list(listed),
        "tokens": [tokens for _, tokens in listed.values()],
        "least": [least for least, _ in listed.values()],
    }
    return {"step": step, "data": {"at": at, "spans": spans, "more_spans": {"spans": more}}}


def test_history_tells_gone_from_unknown_and_from_not_written() -> None:
    events = [
        residency_event(1, 9, {0: (5, 5), 1: (4, 4)}),
        residency_event(2, 20, {1: (1, 4)}),
        residency_event(3, 30, {1: (1, 4)}, more=1),
    ]
    held = plan_charts.message_history(events, MESSAGES)
    found = {(int(m), int(s)): share for m, s, share in held.itertuples(index=False)}
    assert found == {
        (0, 1): 1.0,
        (1, 1): 1.0,
        (0, 2): 0.0,  # the event lists all that hold something
        (1, 2): 0.25,
        (2, 2): 0.0,
        (1, 3): 0.25,  # the others may be among those not listed
    }
    figure = plan_charts.history_map(held, MESSAGES, LIGHT, step=2)
    shares = np.asarray(figure.data[0].z)
    assert shares[1].tolist() == [1.0, 0.25, 0.25] and np.isnan(shares[3]).all()
    assert list(figure.data[0].y)[:2] == ["0 · system", "1 · user · step 1"]
    missed = named(figure, "read, not whole")
    assert (list(missed.x), list(missed.y)[:1]) == ([3, 3], ["1 · user · step 1"])


def test_a_renumber_is_drawn_run_by_run() -> None:
    runs = {"new": [0, 4], "count": [4, 10], "old_first": [0, 90], "old_last": [3, 101]}
    event = {"step": 3, "data": {"before": 120, "after": 14, "runs": runs}}
    kept = named(plan_charts.renumber_map(event, LIGHT), "kept tokens")
    assert list(kept.x) == [0, 3, None, 90, 101, None]
    assert list(kept.y) == [0, 3, None, 4, 13, None]
    assert kept.text[3] == "10 tokens: 90–101 → 4–13"


def test_two_sessions_are_told_apart_by_line_and_marker() -> None:
    figure = step_charts.compare_lines({"pace": STEPS, "h2o": STEPS}, LIGHT, step=2)
    looks = {trace.name: (trace.line.dash, trace.marker.symbol) for trace in figure.data}
    assert len(figure.data) == 4 and len(set(looks.values())) == 2


# Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision
# Deficiency", 2009: linear RGB as seen without one kind of cone.
VISIONS = {
    "full": np.eye(3),
    "protanopia": np.array(
        [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]]
    ),
    "deuteranopia": np.array(
        [[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]]
    ),
    "tritanopia": np.array(
        [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]]
    ),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(colour: str, vision: np.ndarray) -> np.ndarray:
    """CIELAB of an sRGB colour as seen with ``vision`` (D65)."""
    rgb = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = TO_XYZ @ (vision @ linear).clip(0, 1) / TO_XYZ.sum(axis=1)
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_colours_are_told_apart_with_any_vision(palette: Palette, vision: str) -> None:
    assert len(palette.classes) == len(CLASSES)
    for group in (palette.classes, (palette.bad, palette.good), (palette.first, palette.second)):
        for one, other in combinations(group, 2):
            apart = np.linalg.norm(lab(one, VISIONS[vision]) - lab(other, VISIONS[vision]))
            assert apart > 20, (one, other)  # 2.3 can just be told apart
