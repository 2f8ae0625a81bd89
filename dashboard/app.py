"""The dashboard's script, run by Streamlit for every viewer and change (``pace dashboard``).

Its settings come from the environment: ``PACE_URL``, the server's address, and ``PACE_API_KEY``, if
the server has keys.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import streamlit as st

from dashboard import compare_page, markup, session_page, sessions_page
from dashboard.palette import Palette, palette
from dashboard.server import ReadFailed, Server

DEFAULT_URL = "http://127.0.0.1:8000"
RETRY_S = 2.0
_RETRY = "retry"
Show = Callable[[Server, Palette], None]


def main() -> None:
    """One run of the app's script."""
    url = os.environ.get("PACE_URL", DEFAULT_URL)
    server = Server(url.rstrip("/"), os.environ.get("PACE_API_KEY", "").strip() or None)
    st.set_page_config(page_title="PACE", layout="wide")
    colours = palette(st.context.theme.type == "dark")
    st.html(markup.styles(colours))

    def page(show: Show) -> Callable[[], None]:
        return lambda: guarded(show, server, colours)

    pages = [
        st.Page(page(sessions_page.show), title="Sessions", default=True),
        st.Page(page(session_page.show), title="Session", url_path="session"),
        st.Page(page(compare_page.show), title="Compare", url_path="compare"),
    ]
    st.navigation(pages, position="top").run()


def guarded(show: Show, server: Server, colours: Palette) -> None:
    """Show a page; when something cannot be read, say so, and try again by itself."""
    try:
        show(server, colours)
    except ReadFailed as failure:
        st.html(markup.banner("bad", failure.sentence, failure.advice))
        st.session_state[_RETRY] = False
        _retry()


@st.fragment(run_every=RETRY_S)
def _retry() -> None:
    """Runs the page again. The first run of a fragment is part of the page's own."""
    if st.session_state[_RETRY]:
        st.rerun()
    st.session_state[_RETRY] = True


if __name__ == "__main__":
    main()
