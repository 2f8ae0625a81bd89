"""All sessions of the key, live."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from dashboard import data, markup
from dashboard.palette import Palette
from dashboard.server import ReadFailed, Server

LIVE_S = 2.0
_SHORT = 16
EMPTY = (
    "The server holds no session yet.",
    "Send a chat request, or run `pace demo --keep`. This page goes on by itself.",
)
_COLUMNS = {
    "open": st.column_config.LinkColumn("session", display_text=r"session=(.*)$", width="large"),
    "status": st.column_config.TextColumn("status"),
    "policy": st.column_config.TextColumn("policy"),
    "step": st.column_config.NumberColumn("step"),
    "tokens": st.column_config.NumberColumn("tokens", format="localized"),
    "resident_tokens": st.column_config.NumberColumn("resident", format="localized"),
    "residency": st.column_config.NumberColumn("residency ρ", format="percent"),
    "rotary_gap": st.column_config.NumberColumn("rotary gap Δ", format="localized"),
    "kv_mib": st.column_config.NumberColumn("KV cache (MiB)", format="%.1f"),
    "full_kv_mib": st.column_config.NumberColumn("a full one (MiB)", format="%.1f"),
    "last_used": st.column_config.DatetimeColumn("last turn", format="distance"),
}


def show(server: Server, palette: Palette) -> None:
    """Draw the page."""
    st.html('<div class="pace-title">Sessions<small>a click on a name looks inside</small></div>')
    data.sessions(server)  # what cannot be read is said by the page; the table only runs it again
    _table(server)


@st.fragment(run_every=LIVE_S)
def _table(server: Server) -> None:
    try:
        found = data.sessions(server)
    except ReadFailed:
        st.rerun()
    if found.empty:
        st.html(markup.banner("plain", *EMPTY))
        return
    st.html(markup.gauges(_totals(found)))
    st.dataframe(
        table(found),
        hide_index=True,
        column_config=_COLUMNS,
        height="content" if len(found) <= _SHORT else 600,
        placeholder="–",
        key="sessions",
    )


def table(found: pd.DataFrame) -> pd.DataFrame:
    """What the list shows."""
    shown = found.reindex(columns=["session_id", *_COLUMNS])
    shown["open"] = "/session?session=" + found["session_id"]
    shown["last_used"] = pd.to_datetime(found["last_used"], unit="s", utc=True)
    for name in ("kv", "full_kv"):
        shown[f"{name}_mib"] = found[f"{name}_bytes"] / (1 << 20)
    for name in ("residency", "rotary_gap"):
        shown[name] = pd.to_numeric(shown[name], errors="coerce")
    return shown[[*_COLUMNS]]


def _totals(found: pd.DataFrame) -> list[tuple[str, str, str, str]]:
    held, full = found["kv_bytes"].sum(), found["full_kv_bytes"].sum()
    running = int((found["status"] == "running").sum())
    return [
        ("sessions", "sessions", f"{len(found):,}", "sessions the server holds for this key"),
        ("running", "running a turn", f"{running:,}", "sessions with a turn in progress"),
        ("all-tokens", "tokens", f"{found['tokens'].sum():,}", "tokens of all sessions"),
        ("all-kv", "KV cache", markup.mib(held), "bytes of keys and values held"),
        ("all-full", "full caches would be", markup.mib(full), "bytes if nothing was evicted"),
    ]
