"""One session at one step: what the cache holds, what the step needs, and why it is, or is not,
there."""

from __future__ import annotations

import json

import streamlit as st

from dashboard import charts, data, markup
from dashboard.controls import PARAMETERS, choose_session, choose_step, csv, go_live, head, load
from dashboard.details import details
from dashboard.message_list import explanation, message_list
from dashboard.palette import Palette
from dashboard.residency_map import residency_map
from dashboard.server import ReadFailed, Server
from dashboard.sessions_page import EMPTY, LIVE_S
from dashboard.view import View, finding

BINS = 600
"""Bins of the residency map: about one per two pixels of a page 1280 wide."""


def show(server: Server, palette: Palette) -> None:
    """Draw the page."""
    found = data.sessions(server)
    if found.empty:
        st.html(markup.banner("plain", *EMPTY))
        return
    left, middle, right = st.columns([0.28, 0.42, 0.3], gap="medium", vertical_alignment="center")
    with left:
        session_id = choose_session(found, "session", found["session_id"].iloc[0])
    key, about, steps = load(server, session_id)
    with middle:
        step = choose_step(session_id, sorted(set(steps["step"].astype(int))))
    view = View.of(key, about, steps, step, palette)
    with right:
        _live(view, st.query_params.to_dict())
    held = view.now.get("held", True)
    if held:
        finding(view)
    else:
        text = f"What was resident after step {step} is no longer held; that of newer steps is."
        st.html(markup.banner("plain", text))
    left, right = st.columns([0.66, 0.34], gap="medium", vertical_alignment="center")
    with left:
        st.html(markup.gauges(view.gauges()))
    with right:
        st.html(markup.budget_bar(view.by_class(), view.budget))
    if not held:
        return
    _residency(view)
    left, right = st.columns([0.58, 0.42], gap="medium")
    with left:
        message_list(view)
    with right:
        explanation(view)
    details(view)


def _residency(view: View) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        head("What each layer holds", "drag over a range to zoom in")
        span = view.selected_span()
        if (
            span
            and span != view.range
            and st.button(f"Zoom to message {view.selected}", key="zoom-in", type="tertiary")
        ):
            st.query_params["range"] = f"{span[0]}-{span[1]}"
            st.rerun()
        if view.range and st.button("Show all", key="zoom-out", type="tertiary"):
            st.query_params.pop("range")
            st.rerun()
        colour = st.segmented_control(
            "Colour by",
            charts.COLOUR_BY,
            default="class",
            required=True,
            key="map-colour",
            label_visibility="collapsed",
        )
        csv("residency.csv", lambda: view.bins(BINS).frame())
    drawing = charts.residency_map(
        view.bins(BINS),
        view.palette,
        step=view.step,
        colour_by=colour,
        step_starts=view.step_starts(),
        needed=view.needed,
        selected=span,
    )

    def dragged(start: int, end: int) -> None:
        st.query_params["range"] = f"{start}-{end}"

    residency_map(drawing, "map", dragged)


@st.fragment(run_every=LIVE_S)
def _live(view: View, drawn: dict[str, str]) -> None:
    """Goes on to new turns by itself, unless the viewer looks at an older step or at a message.

    ``drawn``: the address's parameters the page was drawn for. A poll that leaves the browser just
    before it hears of a choice brings the address of before, and the page may be drawn for that;
    so what two polls in a row find asked, and not drawn, is drawn.
    """
    asked, unseen = st.query_params.to_dict(), "asked-not-drawn"
    if asked == drawn:
        st.session_state.pop(unseen, None)
    elif asked == st.session_state.get(unseen):
        st.rerun()
    else:
        st.session_state[unseen] = asked
    looking = any(name in asked for name in PARAMETERS)
    try:
        running = data.session(view.key.server, view.key.session_id)["status"] == "running"
        newer = data.newer(view.key, int(view.steps["turn"].max()))
    except ReadFailed:
        st.rerun()  # the page says what is wrong
    if newer and not looking:
        st.rerun()
    words = [f"step {view.step} of {int(view.steps['step'].max())}", view.settings["name"]]
    words.append("paused" if looking else "live")
    if newer or running:
        words.append("newer turns" if newer else "a turn runs")
    with st.container(horizontal=True, horizontal_alignment="right", vertical_alignment="center"):
        st.html(markup.live(words, looking=looking))
        if looking:
            st.button("Go live", key="go-live", type="tertiary", on_click=go_live)
        st.download_button(
            "Ledger",
            lambda: "".join(json.dumps(event) + "\n" for event in data.ledger(view.key)).encode(),
            f"{view.key.session_id}.jsonl",
            "application/jsonl",
            key="ledger",
            on_click="ignore",
            type="tertiary",
            icon=":material/download:",
            help="The whole ledger, a JSON object a line",
        )
