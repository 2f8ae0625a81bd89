"""The tabs below: tokens, messages over time, plan, renumbers, turns. Only the open one is read and
drawn; the first is not a chart, whose script would hold the opening of the page up."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import streamlit as st

from dashboard import data, markup, plan_charts, step_charts
from dashboard.controls import csv, head
from dashboard.figure import CONFIG
from dashboard.server import Json
from dashboard.view import View

STRIP_TOKENS = 700
"""Most tokens one page of the strip shows."""
_READ_TOKENS = 4000
_HELD_BY = {"any layer": 0.0, "half of the layers": 0.5, "every layer": 1.0}


def details(view: View) -> None:
    """Draw the open tab."""
    tabs: dict[str, Callable[[View], None]] = {
        "Tokens": _tokens,
        "Over time": _over_time,
        "Plan": _plan,
        "Renumbers": _renumbers,
        "Turns": _turns,
    }
    for tab, draw in zip(
        st.tabs(list(tabs), key="details", on_change="rerun"), tabs.values(), strict=True
    ):
        if tab.open:
            with tab:
                draw(view)


def _over_time(view: View) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        head("ρ and Δ by step", "✗: not all that was needed was resident")
        csv("steps.csv", lambda: view.steps)
    figure = step_charts.step_lines(view.steps, view.palette, step=view.step, limit=view.limit)
    st.plotly_chart(figure, key="lines", config=CONFIG, theme=None)
    shown = _rows_over_time(view)
    held = plan_charts.message_history(data.events(view.key, "residency"), shown)
    with st.container(horizontal=True, vertical_alignment="center"):
        head("How much of each message every layer held", "○ read and whole, ✗ read and not whole")
        csv("messages-over-time.csv", lambda: held)
    if held.empty:
        st.caption("The ledger no longer holds what was resident after past steps.")
        return
    height = 120 + 19 * len(shown)
    figure = plan_charts.history_map(held, shown, view.palette, step=view.step, height=height)
    st.plotly_chart(figure, key="over-time", config=CONFIG, theme=None)


def _rows_over_time(view: View) -> pd.DataFrame:
    """The messages worth a row: what is read by a step, then the newest, by number."""
    messages = view.messages
    is_read = messages["readers"].map(len) > 0
    ranked = pd.concat([messages[is_read], messages[~is_read].iloc[::-1]])
    return ranked.head(plan_charts.MAX_ROWS).sort_values("message")


@st.fragment
def _tokens(view: View) -> None:
    """The resident text. Its controls redraw this tab only."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        colour = st.segmented_control(
            "Colour by", markup.STRIP_COLOURS, default="class", required=True, key="strip-colour"
        )
        held_by = st.segmented_control(
            "Held by", list(_HELD_BY), default="half of the layers", required=True, key="strip-held"
        )
        span = view.selected_span()
        places = {"beginning": 0, **({"selected message": span[0]} if span else {})}
        places["newest"] = -1
        place = st.segmented_control(
            "From", list(places), default=list(places)[-2], required=True, key="strip-from"
        )
    at = int(view.now["at"])
    start = places[place]
    if start < 0:
        start = max(0, at - 600)
    tokens = strip_tokens(view, start, at, _HELD_BY[held_by])
    st.html(
        markup.token_strip(
            tokens,
            view.messages,
            layers=view.layers,
            step=view.step,
            colour_by=colour,
        )
    )
    with st.container(horizontal=True, vertical_alignment="center"):
        last = int(tokens["logical"].iloc[-1]) + 1 if len(tokens) else at
        st.caption(
            f"Tokens {start:,}–{last:,} of {at:,}; pale: held by fewer than half of the layers. "
            "Point at a token to see more."
        )
        csv("tokens.csv", lambda: tokens)


def strip_tokens(view: View, start: int, end: int, share: float) -> pd.DataFrame:
    """The first tokens from ``start`` on that at least ``share`` of the layers hold."""
    found: list[pd.DataFrame] = []
    following: int | None = start
    while following is not None and sum(map(len, found)) < STRIP_TOKENS:
        page, following = data.resident_tokens(view.key, view.step, following, end, _READ_TOKENS)
        found.append(page[page["layers"] >= share * view.layers] if len(page) else page)
    return pd.concat(found, ignore_index=True).head(STRIP_TOKENS)


def _plan(view: View) -> None:
    pairs = plan_charts.edges(view.messages)
    unresolved = view.unresolved()
    with st.container(horizontal=True, vertical_alignment="center"):
        head("Which step reads which", "an arc leads from a step to its reader")
        csv("plan.csv", lambda: pairs)
    if pairs.empty and not unresolved:
        st.caption("No plan names a message of this session: everything is kept by score.")
        return
    figure = plan_charts.plan_graph(
        view.messages, view.palette, step=view.step, unresolved=unresolved
    )
    st.plotly_chart(figure, key="plan", config=CONFIG, theme=None)
    if unresolved:
        text = "The plan names what could not be resolved: " + "; ".join(unresolved[:10]) + "."
        st.html(markup.banner("bad", text))


def _renumbers(view: View) -> None:
    events = [e for e in data.events(view.key, "renumber") if e["data"].get("runs")]
    if not events:
        st.caption(
            "Positions have not been numbered anew: the session is shorter than the position limit."
            if view.limit is not None
            else "This policy leaves positions as they were written."
        )
        return
    past = [index for index, event in enumerate(events) if event["step"] <= view.step]
    chosen = st.selectbox(
        "Renumber",
        range(len(events)),
        index=past[-1] if past else 0,
        format_func=lambda index: _renumber_name(index, events[index]),
        key=f"renumber-{view.step}",
    )
    event = events[chosen]
    with st.container(horizontal=True, vertical_alignment="center"):
        head(
            "Where the kept tokens went",
            f"the next token moved from position {event['data']['before']:,} "
            f"to {event['data']['after']:,}",
        )
        csv("renumber.csv", lambda: pd.DataFrame(event["data"]["runs"]))
    figure = plan_charts.renumber_map(event, view.palette)
    st.plotly_chart(figure, key="renumber", config=CONFIG, theme=None)


def _renumber_name(index: int, event: Json) -> str:
    about = event["data"]
    return (
        f"{index + 1}: step {event['step']}, at token {about['at']:,}: "
        f"{about['before']:,} → {about['after']:,}"
    )


def _turns(view: View) -> None:
    table = turn_table(view.steps)
    with st.container(horizontal=True, vertical_alignment="center"):
        head("Turns", "times in seconds; first token: queued + prefill")
        csv("turns.csv", lambda: table)
    st.dataframe(
        table.iloc[::-1],
        hide_index=True,
        height=330,
        placeholder="–",
        key="turns",
        column_config={"at": st.column_config.DatetimeColumn("at", format="HH:mm:ss")},
    )


def turn_table(steps: pd.DataFrame) -> pd.DataFrame:
    """One line per turn: tokens new, cached, restored and answered, and what took how long (s)."""
    seconds = steps.reindex(
        columns=["queued_s", "prefill_s", "decode_s", "forward_s", "evict_s", "renumber_s"]
    ).apply(pd.to_numeric)
    return pd.DataFrame(
        {
            "turn": steps["turn"],
            "step": steps["step"],
            "at": pd.to_datetime(steps["time"], unit="s"),
            "new": steps["new_tokens"],
            "cached": steps["cached_tokens"],
            "restored": steps["restored_tokens"],
            "answer": steps["completion_tokens"],
            "evicted": steps["evicted"],
            "renumbers": steps["renumbers"],
            "displaced": steps["displaced"],
            "first token": (seconds["queued_s"] + seconds["prefill_s"]).round(3),
            "decode": seconds["decode_s"].round(3),
            "forward": seconds["forward_s"].round(3),
            "evict": seconds["evict_s"].round(4),
            "renumber": seconds["renumber_s"].round(4),
        }
    )
