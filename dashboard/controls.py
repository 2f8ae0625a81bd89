"""The widgets that choose a session and a step, and what frames a figure. Choices live in the
page's address, so that it can be shared."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from html import escape

import pandas as pd
import streamlit as st

from dashboard import data
from dashboard.data import Key
from dashboard.server import Json, ReadFailed, Server

PARAMETERS = ("step", "message", "range")
"""What the address says of the part of a session that is looked at."""
_NUMBER = re.compile("[0-9]{1,15}")


def load(server: Server, session_id: str) -> tuple[Key, Json, pd.DataFrame]:
    """A session's cache key, description and turns.

    Raises:
        ReadFailed: it is not there, or no turn has been committed.
    """
    about = data.session(server, session_id)
    key = data.key_of(server, about)
    steps = data.steps(key)
    if steps.empty:
        raise ReadFailed(
            "No turn of this session has been committed yet.", "This page goes on by itself."
        )
    return key, about, steps


def choose_session(found: pd.DataFrame, name: str, default: str) -> str:
    """A list of sessions; the choice is the address's parameter ``name``.

    Args:
        default: the session that is shown when the address names none.

    Raises:
        ReadFailed: the address names a session that is not there.
    """
    ids, widget = list(found["session_id"]), f"choose-{name}"
    asked = st.query_params.get(name, default)
    if asked not in ids:
        raise ReadFailed(
            f"There is no session '{asked}' here.",
            "It was deleted, made room for another, or belongs to another key: see the list.",
            404,
        )
    st.session_state[widget] = asked

    def chosen() -> None:
        st.query_params.from_dict({**st.query_params.to_dict(), name: st.session_state[widget]})
        for other in PARAMETERS:
            st.query_params.pop(other, None)

    st.selectbox("Session", ids, key=widget, on_change=chosen, label_visibility="collapsed")
    return asked


def choose_step(owner: str, known: Sequence[int]) -> int:
    """The slider that drives all views; the choice is the address's parameter ``step``, absent
    while the newest is followed.

    Args:
        known: steps there are, rising.
    """
    newest, widget = known[-1], f"step-{owner}"
    asked = whole_number(st.query_params.get("step", ""))
    value = newest if asked is None else asked
    value = max((step for step in known if step <= value), default=known[0])
    if len(known) == 1:
        st.caption(f"Step {newest}, the only one so far")
        return newest
    st.session_state[widget] = value

    def moved() -> None:
        if st.session_state[widget] >= newest:
            st.query_params.pop("step", None)
        else:
            st.query_params["step"] = str(st.session_state[widget])

    st.slider("Step", known[0], newest, key=widget, on_change=moved, label_visibility="collapsed")
    return value


def whole_number(text: str) -> int | None:
    """The number an address's parameter is; None when it is none, or larger than any here."""
    return int(text) if _NUMBER.fullmatch(text) else None


def go_live() -> None:
    """Forget what was looked at: the newest step is followed again."""
    for name in PARAMETERS:
        st.query_params.pop(name, None)


def head(text: str, more: str = "") -> None:
    """Title of a part."""
    st.html(f'<div class="pace-head">{escape(text)}<small>{escape(more)}</small></div>')


def csv(name: str, frame: Callable[[], pd.DataFrame]) -> None:
    """A button that saves the data behind a figure, made when it is asked for."""
    st.download_button(
        "CSV",
        lambda: frame().to_csv(index=False).encode(),
        name,
        "text/csv",
        key=f"csv-{name}",
        on_click="ignore",
        type="tertiary",
        icon=":material/download:",
    )
