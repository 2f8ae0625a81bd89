"""All that the dashboard reads: PACE's HTTP API, as data frames and arrays.

Answers are cached by what they depend on. A session's ``version`` changes whenever a turn is
committed, so nothing old is shown and nothing is read twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pandas as pd
import streamlit as st

SESSION_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
MAX_MESSAGES = 5000
"""Most messages a page looks at; the newest are taken."""
_TIMEOUT_S = 10.0
_PAGE = 500

Json = dict[str, Any]


class ReadFailed(Exception):
    """Something could not be read.

    Attributes:
        sentence: what happened, for people.
        advice: what to do about it.
        status: HTTP status, None when there was no answer.
    """

    def __init__(self, sentence: str, advice: str, status: int | None = None) -> None:
        super().__init__(sentence)
        self.sentence, self.advice, self.status = sentence, advice, status


@dataclass(frozen=True, slots=True)
class Server:
    """A PACE server: address without ``/v1``, and the API key, if it has keys."""

    url: str
    key: str | None = None

    def get(self, path: str, **params: object) -> Json:
        """``GET /v1{path}``; parameters that are None are left out.

        Raises:
            ReadFailed: no answer, a refusal, or an answer that is not PACE's.
        """
        given = {name: str(value) for name, value in params.items() if value is not None}
        try:
            response = _client(self).get(f"/v1{path}", params=given)
        except httpx.TimeoutException:
            raise ReadFailed(
                f"The server at {self.url} has not answered for {_TIMEOUT_S:.0f} seconds.",
                "It may be busy; this page tries again by itself.",
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL):
            raise ReadFailed(
                f"No server answers at {self.url}.",
                "Start one with `pace serve`, or name another: `pace dashboard --url ADDRESS`. "
                "This page goes on by itself as soon as it answers.",
            ) from None
        return _body(self, response)


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
    """The sessions, last used first; no line when there are none."""
    found = server.get("/sessions")["data"]
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
    wanted = kinds.split(",")
    return [event for event in _pages(key, "/events", kind=kinds) if event["kind"] in wanted]


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


@st.cache_resource(max_entries=8, show_spinner=False)
def _client(server: Server) -> httpx.Client:
    headers = {"Authorization": f"Bearer {server.key}"} if server.key else {}
    return httpx.Client(base_url=server.url, headers=headers, timeout=_TIMEOUT_S)


def _body(server: Server, response: httpx.Response) -> Json:
    try:
        body = response.json()
    except ValueError:
        body = None
    error = body.get("error") if isinstance(body, dict) else None
    if response.is_success and isinstance(body, dict):
        return body
    if response.status_code == 401:
        raise ReadFailed(
            f"The server at {server.url} does not accept this dashboard's API key."
            if server.key
            else f"The server at {server.url} wants an API key.",
            "Set PACE_API_KEY to a key of the server and start `pace dashboard` again.",
            401,
        )
    if not isinstance(error, dict):
        raise ReadFailed(
            f"What answers at {server.url} is not a PACE server (HTTP {response.status_code}).",
            "Name the right address: `pace dashboard --url ADDRESS`.",
            response.status_code,
        )
    if response.status_code == 404:
        gone = "It may have been deleted, or made room for another. Choose one from the list."
        step = "Choose another step: newer ones are held longer."
        advice = step if error.get("code") == "step_not_found" else gone
        raise ReadFailed(str(error.get("message")), advice, 404)
    raise ReadFailed(
        f"{error.get('message')} (HTTP {response.status_code})",
        "This page tries again by itself.",
        response.status_code,
    )


def _floats(rows: Any) -> npt.NDArray[np.float64]:
    """Lists of numbers and None as an array with NaN."""
    return np.array(rows, dtype=np.float64)
