"""What every view of a session page shares: the session, the step, and the widgets that choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import pandas as pd
import streamlit as st

from dashboard import data, markup
from dashboard.data import Bins, Json, Key, ReadFailed, Server
from dashboard.markup import mib, number, percent
from dashboard.palette import CLASSES, Palette
from dashboard.why import Why, why


@dataclass(frozen=True)
class View:
    """A session at a step.

    Attributes:
        about: as ``data.session`` gives it.
        steps: all turns; ``now``: the last one of ``step``.
        messages: as of ``step``, with a column ``needed``: the step reads it.
    """

    key: Key
    about: Json
    steps: pd.DataFrame
    step: int
    now: Json
    messages: pd.DataFrame
    palette: Palette

    @classmethod
    def of(cls, key: Key, about: Json, steps: pd.DataFrame, step: int, palette: Palette) -> View:
        """Read what belongs to ``step``."""
        now = steps[steps["step"] == step].iloc[-1].to_dict()
        messages = data.messages(key, step, now["messages"][1])
        if len(messages):
            messages = messages.assign(
                needed=[
                    step in readers and row_step != step
                    for readers, row_step in zip(messages["readers"], messages["step"], strict=True)
                ]
            )
        return cls(key, about, steps, step, now, messages, palette)

    @property
    def settings(self) -> Json:
        """The policy's sizes."""
        found: Json = self.about["policy_settings"]
        return found

    @property
    def budget(self) -> int:
        return int(self.settings["budget"])

    @property
    def limit(self) -> int | None:
        found: int | None = self.settings.get("position_limit")
        return found

    @property
    def needed(self) -> pd.DataFrame:
        """The messages that the step reads."""
        return self.messages[self.messages["needed"]] if len(self.messages) else self.messages

    @property
    def missing(self) -> pd.DataFrame:
        """Those of which some layer has lost something."""
        needed = self.needed
        return needed[needed["least"] < needed["tokens"]] if len(needed) else needed

    @property
    def selected(self) -> int | None:
        """The message looked at: the one asked for, else the needed one that misses most."""
        asked = st.query_params.get("message", "")
        known = set(self.messages["message"]) if len(self.messages) else set()
        if asked.isdecimal() and int(asked) in known:
            return int(asked)
        return None if self.missing.empty else self.worst

    @property
    def worst(self) -> int:
        """Of ``missing``, which is not empty, the message that misses most."""
        missing = self.missing
        return int(missing.loc[(missing["least"] / missing["tokens"]).idxmin(), "message"])

    def why(self, index: int) -> Why:
        """Why the message is in the cache, or is not."""
        evictions = data.events(self.key, "eviction")
        return why(self.message(index), self.step, evictions, self.settings)

    def message(self, index: int) -> Json:
        """One line of ``messages``."""
        return dict(self.messages[self.messages["message"] == index].iloc[0])

    def selected_span(self) -> tuple[int, int] | None:
        """Logical positions of the selected message."""
        index = self.selected
        if index is None:
            return None
        row = self.message(index)
        return int(row["start"]), int(row["end"])

    def step_starts(self) -> dict[int, int]:
        """Step → its first logical position, of the messages listed."""
        known = self.messages.dropna(subset=["step"]) if len(self.messages) else self.messages
        return {int(s): int(a) for s, a in known.groupby("step")["start"].min().items()}

    @property
    def range(self) -> tuple[int, int] | None:
        """Logical positions [start, end) zoomed to, by the address's parameter ``range``."""
        start, _, end = st.query_params.get("range", "").partition("-")
        at = int(self.now["at"])
        if not (start.isdecimal() and end.isdecimal()):
            return None
        found = min(int(start), at), min(int(end), at)
        return found if found[0] < found[1] else None

    def bins(self, count: int) -> Bins:
        """Residency of the session so far, or of what is zoomed to."""
        start, end = self.range or (0, int(self.now["at"]))
        return data.residency(self.key, self.step, min(count, end - start), start, end)

    @property
    def layers(self) -> int:
        """Layers of the model."""
        return len(data.residency(self.key, self.step, 1, 0, int(self.now["at"])).counts)

    def unresolved(self) -> list[str]:
        """What the newest plan up to this step named in vain."""
        told = self.steps.get("unresolved", pd.Series(dtype=object))
        past = [list(found) for found in told[self.steps["step"] <= self.step] if found]
        return past[-1] if past else []

    def by_class(self) -> dict[str, int]:
        """Slots of a layer by class, mean over layers."""
        return {name: round(self.now.get(f"class_{name}") or 0) for name in CLASSES}

    def gauges(self, short: bool = False) -> list[tuple[str, str, str, str]]:
        """The row of figures at the top: (name, label, value, meaning) each."""
        now, past = self.now, self.steps[self.steps["step"] <= self.step]
        share = now["kv_bytes"] / now["full_kv_bytes"] if now["full_kv_bytes"] else None
        cells = [
            ("residency", "residency ρ", percent(now["residency"]), RHO),
            ("rotary_gap", "rotary gap Δ", number(now["rotary_gap"]), DELTA),
            ("tokens", "tokens", number(now["at"]), "tokens of the session so far"),
            ("resident", "resident", number(now["resident"]), "tokens in every layer's cache"),
            ("kv_bytes", "KV cache", mib(now["kv_bytes"]), "bytes of keys and values held"),
            (
                "full_kv_bytes",
                "a full one" + (f" ({1 / share:.1f}×)" if share else ""),
                mib(now["full_kv_bytes"]),
                "bytes if nothing had ever been evicted",
            ),
            (
                "renumbers",
                "renumbers",
                number(past["renumbers"].sum()),
                "how often positions were numbered anew, up to this step",
            ),
            (
                "displaced",
                "displaced",
                number(past["displaced"].sum()),
                "planned tokens that did not fit the budget, up to this step",
            ),
        ]
        return [cell for cell in cells if not (short and cell[0] in ("tokens", "resident"))]


RHO = "needed tokens that are resident ÷ needed tokens, in the worst layer"
DELTA = "positions between the query and the start of what it needs, in the farthest layer"


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
        for other in ("step", "message", "range"):
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
    asked = st.query_params.get("step", "")
    value = int(asked) if asked.isdecimal() else newest
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


def go_live() -> None:
    """Forget what was looked at: the newest step is followed again."""
    for name in ("step", "message", "range"):
        st.query_params.pop(name, None)


def finding(view: View, short: bool = False) -> None:
    """The answer first: whether the step finds what it reads, and if not, why (``short``: not
    why)."""
    needed, missing, step = view.needed, view.missing, view.step
    if needed.empty:
        text = f"Step {step} reads no earlier message by the plan."
        st.html(markup.banner("plain", text))
    elif missing.empty:
        gap = view.now["rotary_gap"]
        near = "" if gap is None or pd.isna(gap) else f", at most {int(gap):,} positions away"
        text = f"Step {step} reads {names(needed)}: all of it is in every layer{near}."
        st.html(markup.banner("good", text))
    else:
        worst = view.message(view.worst)
        share = worst["least"] / worst["tokens"]
        text = (
            f"Step {step} reads {names(needed)}, but the worst layer holds {share:.0%} of message "
            f"{view.worst}."
        )
        if short:
            st.html(markup.banner("bad", text))
            return
        found = view.why(view.worst)
        st.html(markup.banner("bad", f"{text} Why? {found.sentence}", found.advice))


def names(messages: pd.DataFrame) -> str:
    """Such as ``messages 3, 4 and 5 (step 2)``."""
    listed = [str(index) for index in messages["message"][:6]]
    if len(messages) > 6:
        listed.append(f"{len(messages) - 6} more")
    text = " and ".join([", ".join(listed[:-1]), listed[-1]] if len(listed) > 1 else listed)
    steps = sorted({int(step) for step in messages["step"].dropna()})
    of = f" (step {', '.join(map(str, steps[:4]))})" if steps else ""
    return f"message{'s' if len(messages) > 1 else ''} {text}{of}"


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
