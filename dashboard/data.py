"""All that the dashboard reads: PACE's HTTP API, as data frames and arrays.

Answers are cached by what they depend on. A session's ``version`` changes whenever a turn is
committed, so nothing old is shown and nothing is read twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import streamlit as st

from dashboard.server import Json, ReadFailed, Server, foreign

SESSION_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
MAX_MESSAGES = 5000
"""Most messages a page looks at; the newest are taken."""
_LISTED = {"session_id", "last_used", "policy", "step", "tokens", "kv_bytes", "status"}
_PAGE = 500


@dataclass(frozen=True, slots=True)
class Key:
    """A state of a session: what cached reads depend on."""

    server: Server
    session_id: str
    version: str

    @property
    def path(self) -> str:
        return f"/sessions/{self.session_id}"


@dataclass(frozen=True, slots=True)
class Bins:
    """Residency of every layer in bins of logical positions.

    Attributes:
        edges: logical positions ``[N + 1]``, int64.
        counts: resident tokens ``[L, N]``, int64.
        classes: code of the most frequent class ``[L, N]``, −1 where empty.
        next_use: soonest reading step ``[L, N]``, float64, NaN where none.
        score: highest score ``[L, N]``, float64, NaN where empty.
        resolution: ``exact``, ``bins`` (coarser than asked for) or ``union`` (over layers).
        at: tokens written.
    """

    edges: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    classes: npt.NDArray[np.int64]
    next_use: npt.NDArray[np.float64]
    score: npt.NDArray[np.float64]
    resolution: str
    at: int

    def frame(self) -> pd.DataFrame:
        """One line per layer and bin that holds a token."""
        layer, at = np.nonzero(self.counts)
        return pd.DataFrame(
            {
                "layer": layer,
                "start": self.edges[at],
                "end": self.edges[at + 1],
                "resident": self.counts[layer, at],
                "class": self.classes[layer, at],
                "next_use": self.next_use[layer, at],
                "score": self.score[layer, at],
            }
        )


def sessions(server: Server) -> pd.DataFrame:
    """The sessions, last used first; no line when there are none.

    Raises:
        ReadFailed: also when what answers is another kind of server. Every page reads this first.
    """
    found = server.get("/sessions").get("data")
    entries = found if isinstance(found, list) else [None]
    if not all(isinstance(entry, dict) and entry.keys() >= _LISTED for entry in entries):
        raise foreign(server, 200)
    frame = pd.DataFrame(found)
    return frame.sort_values("last_used", ascending=False, ignore_index=True) if found else frame


def session(server: Server, session_id: str) -> Json:
    """One session's counts, plan and policy sizes.

    Raises:
        ReadFailed: also when ``session_id`` is none.
    """
    if not SESSION_ID.fullmatch(session_id):
        raise ReadFailed(
            "The address names no session id.",
            "Choose a session from the list. Ids are 1 to 128 letters, digits, '_', '.', ':', '-'.",
            404,
        )
    return server.get(f"/sessions/{session_id}")


def key_of(server: Server, about: Mapping[str, Any]) -> Key:
    """The cache key of the session that ``session`` described."""
    version = f"{about['created']}-{about['turns']}-{about['tokens']}-{about['last_used']}"
    return Key(server, about["session_id"], version)


@st.cache_data(max_entries=64, show_spinner=False)
def steps(key: Key) -> pd.DataFrame:
    """One line per committed turn, oldest first; ``by_class`` and ``times`` are columns of their
    own (``class_…``, ``…_s``)."""
    found = list(_pages(key, "/steps", "turn"))
    lines = [
        {name: value for name, value in row.items() if name not in ("by_class", "times")}
        | {f"class_{name}": count for name, count in (row.get("by_class") or {}).items()}
        | (row.get("times") or {})
        for row in found
    ]
    return pd.DataFrame(lines)


@st.cache_data(max_entries=256, show_spinner=False)
def messages(key: Key, step: int, count: int) -> pd.DataFrame:
    """The messages there were at ``step``, at most ``MAX_MESSAGES``, the newest. ``readers``: all
    steps known to read it, past ones included; ``least``, ``most``: resident tokens over layers.

    Args:
        count: how many messages the session has by then.
    """
    found: list[Json] = []
    start: int | None = max(0, count - MAX_MESSAGES)
    while start is not None:
        answer = key.server.get(f"{key.path}/messages", start=start, limit=_PAGE, step=step)
        found += answer["data"]
        start = answer.get("next")
    frame = pd.DataFrame(found)
    if found:
        read_by = frame.get("read_by", pd.Series([[]] * len(frame)))
        frame["readers"] = [
            sorted({*past, *ahead}) for past, ahead in zip(read_by, frame["readers"], strict=True)
        ]
        frame["tokens"] = frame["end"] - frame["start"]
        frame["least"] = [least for least, _ in frame["resident"]]
        frame["most"] = [most for _, most in frame["resident"]]
    return frame


@st.cache_data(max_entries=128, show_spinner=False)
def residency(key: Key, step: int, bins: int, start: int, end: int) -> Bins:
    """What every layer holds of the logical positions [start, end) at ``step``."""
    parts: list[Json] = []
    first: int | None = 0
    while first is not None:  # a few layers at a time where all are more than one answer holds
        answer = key.server.get(
            f"{key.path}/residency", step=step, bins=bins, start=start, end=end, layers=f"{first}-"
        )
        parts.append(answer["bins"])
        first = answer.get("next_layer")

    def joined(name: str) -> list[list[Any]]:
        return [row for part in parts for row in part[name]]

    return Bins(
        edges=np.asarray(parts[0]["edges"], dtype=np.int64),
        counts=np.asarray(joined("counts"), dtype=np.int64),
        classes=np.asarray(joined("class"), dtype=np.int64),
        next_use=_floats(joined("next_use")),
        score=_floats(joined("score")),
        resolution=answer.get("resolution", "exact"),
        at=answer["at"],
    )


@st.cache_data(max_entries=128, show_spinner=False)
def resident_tokens(
    key: Key, step: int, start: int, end: int, limit: int
) -> tuple[pd.DataFrame, int | None]:
    """The tokens of [start, end) that any layer holds at ``step``, and where to go on."""
    answer = key.server.get(
        f"{key.path}/tokens", step=step, start=start, end=end, resident=1, limit=limit
    )
    return pd.DataFrame(answer["data"]), answer["next"]


@st.cache_data(max_entries=64, show_spinner=False)
def events(key: Key, kinds: str) -> list[Json]:
    """The ledger's events of ``kinds`` (a comma list), oldest first."""
    return list(_pages(key, "/events", kind=kinds))


def ledger(key: Key) -> Iterator[Json]:
    """The whole ledger."""
    return _pages(key, "/events")


def newer(key: Key, turn: int) -> bool:
    """Whether a turn has been committed after ``turn``."""
    return bool(key.server.get(f"{key.path}/steps", since=turn, limit=1)["data"])


def _pages(key: Key, path: str, cursor: str = "seq", **params: object) -> Iterator[Json]:
    """The entries of a list that is read in pages; ``cursor``: the field that ``since`` names."""
    since = 0
    while True:
        answer = key.server.get(key.path + path, since=since, **params)
        yield from answer["data"]
        following = max([answer["next"], *(entry[cursor] for entry in answer["data"])])
        if following <= since:
            return
        since = following


def _floats(rows: Any) -> npt.NDArray[np.float64]:
    """Lists of numbers and None as an array with NaN."""
    return np.array(rows, dtype=np.float64)
