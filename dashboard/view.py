"""What every view of a session page shares: the session, the step, and the widgets that choose."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import streamlit as st

from dashboard import data, markup
from dashboard.controls import whole_number
from dashboard.data import Bins, Key
from dashboard.markup import mib, number, percent
from dashboard.palette import CLASSES, Palette
from dashboard.server import Json
from dashboard.why import Why, why


@dataclass(frozen=True)
class View:
    """A session at a step.

    Attributes:
        about: as ``data.session`` gives it.
        steps: all turns; ``now``: the last one of ``step``.
        messages: as of ``step``, with a column ``needed``: the step reads it. No line when what was
            resident after the step is no longer held.
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
        held = now.get("held", True)
        messages = data.messages(key, step, now["messages"][1]) if held else pd.DataFrame()
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
        asked = whole_number(st.query_params.get("message", ""))
        known = set(self.messages["message"]) if len(self.messages) else set()
        if asked in known:
            return asked
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
        asked = st.query_params.get("range", "").partition("-")
        start, end, at = whole_number(asked[0]), whole_number(asked[2]), int(self.now["at"])
        if start is None or end is None:
            return None
        found = min(start, at), min(end, at)
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
