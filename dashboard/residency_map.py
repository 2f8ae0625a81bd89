"""The widget that draws a residency map and tells of the range dragged over."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.resources import files

import streamlit as st

from dashboard.charts import Drawing


def residency_map(
    drawing: Drawing, key: str, on_range: Callable[[int, int], None] | None = None
) -> None:
    """Draw ``drawing`` (``charts.residency_map``).

    Args:
        on_range: called with the logical positions [start, end) that were dragged over.
    """

    def dragged() -> None:
        found = st.session_state[key].get("range")
        if on_range and isinstance(found, list) and len(found) == 2:
            on_range(max(0, int(found[0])), max(1, int(found[1])))

    _component()(data=drawing, key=key, on_range_change=dragged)


@cache
def _component() -> Callable[..., object]:
    """The component, as Streamlit knows it; each mount makes sure that it still does."""
    here = files("dashboard")
    return st.components.v2.component(
        "pace.residency_map",
        html='<div class="pace-map"></div>',
        css=here.joinpath("residency_map.css").read_text(encoding="utf-8"),
        js=here.joinpath("residency_map.js").read_text(encoding="utf-8"),
        isolate_styles=False,  # plain selectors reach it; its names are prefixed
    )
