"""The messages, how much of each is resident, and why."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from dashboard import markup
from dashboard.controls import csv, head
from dashboard.markup import percent
from dashboard.palette import Palette
from dashboard.view import View

_COLUMNS = {
    "message": "#",
    "state": "state",
    "role": "role",
    "step": "step",
    "held": "resident",
    "tokens": "tokens",
    "read_by": "read by",
    "preview": "text",
}


STATES = ("✗ needed", "✓ needed", "planned", "whole", "partly", "gone")


def message_list(view: View) -> None:
    """The list; selecting a line asks why."""
    with st.container(horizontal=True, vertical_alignment="center"):
        head("Messages", "select one to see why it is, or is not, there")
        csv("messages.csv", lambda: view.messages)
    shown = table(view.messages, view.step)

    def chosen() -> None:
        picked = st.session_state["messages"]["selection"]["rows"]
        if picked:
            st.query_params["message"] = str(shown["message"].iloc[picked[0]])
        else:
            st.query_params.pop("message", None)

    st.dataframe(
        shown,
        key="messages",
        height=236,
        row_height=28,
        hide_index=True,
        placeholder="–",
        on_select=chosen,
        selection_mode="single-row",
        column_order=list(_COLUMNS),
        column_config={
            **{name: st.column_config.Column(label) for name, label in _COLUMNS.items()},
            "held": st.column_config.ProgressColumn(
                "resident", format="%d%%", min_value=0, max_value=100, width="small"
            ),
            "state": st.column_config.MultiselectColumn(
                "state", options=list(STATES), color=_colours(view.palette), width=100
            ),
            "preview": st.column_config.TextColumn("text", width="large"),
        },
    )


def _colours(palette: Palette) -> list[str]:
    """A colour per state."""
    grey = palette.classes[3]
    return [palette.bad, palette.good, palette.classes[2], palette.classes[1], grey, grey]


def table(messages: pd.DataFrame, step: int) -> pd.DataFrame:
    """What the list shows: what the step needs first, then by number."""
    if messages.empty:
        return pd.DataFrame(columns=[*_COLUMNS])
    shown = messages.assign(
        held=(100 * messages["least"] // messages["tokens"].clip(lower=1)),
        read_by=[", ".join(map(str, readers)) for readers in messages["readers"]],
        preview=[markup.visible(text) for text in messages["preview"]],
        step=messages["step"].astype("Int64"),
    )
    shown["state"] = [[state(row, step)] for row in shown.to_dict("records")]
    shown = shown.sort_values(["needed", "message"], ascending=[False, True], ignore_index=True)
    return shown[[*_COLUMNS, "needed"]]


def state(row: dict[str, Any], step: int) -> str:
    """One word on a message as of ``step``."""
    if row["needed"]:
        return "✓ needed" if row["least"] >= row["tokens"] else "✗ needed"
    if any(reader > step for reader in row["readers"]):
        return "planned"
    return "whole" if row["least"] >= row["tokens"] else "partly" if row["most"] else "gone"


def explanation(view: View) -> None:
    """Why the selected message is there or not, and what it went through."""
    index = view.selected
    head("Why?", "" if index is None else f"message {index}")
    if index is None:
        st.html('<div class="pace-advice">Select a message on the left.</div>')
        return
    message, found = view.message(index), view.why(index)
    missing = int(message["least"]) < int(message["tokens"])
    if not (missing and message["needed"] and index == view.worst):  # the top has said that one
        st.html(markup.banner("plain" if missing else "good", found.sentence, found.advice))
    readers = _reads(view, message["readers"])
    st.html(f'<div class="pace-advice">Read by {readers or "no step of the plan"}.</div>')
    if found.losses:
        st.dataframe(
            found.frame(), hide_index=True, height=190, row_height=26, placeholder="–", key="losses"
        )


def _reads(view: View, readers: list[int]) -> str:
    """The reading steps, the past ones with the residency they found."""
    past = view.steps.drop_duplicates("step", keep="last").set_index("step")["residency"]
    return ", ".join(
        f"step {reader} (ρ {percent(past[reader])})" if reader in past.index else f"step {reader}"
        for reader in readers[:12]
    ) + (" …" if len(readers) > 12 else "")
