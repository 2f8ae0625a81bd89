"""Two sessions side by side at one step: two policies, the same work."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from dashboard import charts, data, markup, step_charts
from dashboard.controls import choose_session, choose_step, csv, head, load
from dashboard.figure import CONFIG
from dashboard.palette import Palette
from dashboard.residency_map import residency_map
from dashboard.server import Server
from dashboard.sessions_page import EMPTY
from dashboard.view import View, finding

BINS = 300


def show(server: Server, palette: Palette) -> None:
    """Draw the page."""
    found = data.sessions(server)
    if found.empty:
        st.html(markup.banner("plain", *EMPTY))
        return
    columns = st.columns(2, gap="medium")
    loaded = []
    for column, name, default in zip(columns, ("a", "b"), pair(found), strict=True):
        with column:
            session_id = choose_session(found, name, default)
        loaded.append(load(server, session_id))
    held = (steps[steps["held"]]["step"] for _, _, steps in loaded)
    shared = sorted(set.intersection(*(set(map(int, known)) for known in held)))
    if not shared:
        st.html(
            markup.banner(
                "plain",
                "These two sessions have no step in common yet.",
                "Choose two that were given the same work.",
            )
        )
        return
    step = choose_step("compare", shared)
    views = [View.of(key, about, steps, step, palette) for key, about, steps in loaded]
    st.html(markup.banner("plain", verdict(*views)))
    for column, view, side in zip(st.columns(2, gap="medium"), views, "ab", strict=True):
        with column:
            _side(view, side)
    _lines(views)


def pair(found: pd.DataFrame) -> tuple[str, str]:
    """The two sessions to begin with: as many steps, another policy; else the two used last."""
    for one in found.itertuples():
        same = found[(found["step"] == one.step) & (found["policy"] != one.policy)]
        if len(same):
            both = pd.concat([found[found["session_id"] == one.session_id], same.head(1)])
            ids = list(both.sort_values("policy", ascending=False)["session_id"])
            return ids[0], ids[1]
    ids = list(found["session_id"])
    return ids[0], ids[min(1, len(ids) - 1)]


def verdict(one: View, other: View) -> str:
    """Both sides' ρ and Δ in a sentence."""

    def side(view: View) -> str:
        name = f"'{view.settings['name']}'"
        rho, gap = view.now["residency"], view.now["rotary_gap"]
        if rho is None or pd.isna(rho):
            return f"{name} reads nothing earlier"
        far = "" if gap is None or pd.isna(gap) else f", {int(gap):,} positions away"
        return f"{name} finds {rho:.0%} of what it reads{far}"

    return f"At step {one.step} {side(one)}; {side(other)}."


def _side(view: View, side: str) -> None:
    finding(view, short=True)
    st.html(markup.gauges(view.gauges(short=True)))
    st.html(markup.budget_bar(view.by_class(), view.budget))
    drawing = charts.residency_map(
        view.bins(BINS),
        view.palette,
        step=view.step,
        step_starts=view.step_starts(),
        needed=view.needed,
        legend=False,
        height=240,
        zoomable=False,
    )
    residency_map(drawing, f"map-{side}")


def _lines(views: list[View]) -> None:
    names = [f"{view.settings['name']} · {view.key.session_id}" for view in views]
    if names[0] == names[1]:
        names[1] += " (again)"
    sides = dict(zip(names, (view.steps for view in views), strict=True))
    with st.container(horizontal=True, vertical_alignment="center"):
        head("ρ and Δ of both, by step")
        csv("compare.csv", lambda: table(sides))
    figure = step_charts.compare_lines(sides, views[0].palette, step=views[0].step)
    st.plotly_chart(figure, key="compare-lines", config=CONFIG, theme=None)


def table(sides: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Both sessions' turns below each other."""
    columns = ["step", "turn", "at", "resident", "residency", "rotary_gap", "renumbers"]
    columns += ["evicted", "displaced", "kv_bytes", "full_kv_bytes"]
    return pd.concat({name: steps[columns] for name, steps in sides.items()}, names=["session"])
