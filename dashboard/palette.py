"""Colours: the Okabe–Ito set for classes and alarms, cividis for magnitudes.

Both can be told apart with any colour vision; nothing is said by colour alone (a sign, a word or a
shape says it too).
"""

from __future__ import annotations

from dataclasses import dataclass

CLASSES = ("sink", "recent", "protected", "other")
"""Codes 0 … 3 of the API."""
CLASS_MEANING = {
    "sink": "the first tokens, always kept",
    "recent": "the newest tokens, always kept",
    "protected": "the plan says a later step reads them",
    "other": "kept by score",
}
SEQUENTIAL = (
    "#00224e",
    "#273e6a",
    "#4c556c",
    "#6c6d72",
    "#8c8678",
    "#b0a171",
    "#d5be5e",
    "#fee838",
)
"""Cividis, low to high."""


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours of a theme, as ``#rrggbb``.

    ``classes`` by code; ``bad`` and ``good`` for alarms; ``first`` and ``second`` for two series.
    """

    dark: bool
    background: str
    text: str
    faint: str
    grid: str
    classes: tuple[str, str, str, str]
    bad: str
    good: str
    first: str
    second: str

    def tint(self, colour: str, share: float) -> str:
        """``colour`` over the background with opacity ``share`` (0 … 1)."""
        return _mix(self.background, colour, share)

    def ramp(self, count: int) -> list[str]:
        """``count`` colours along ``SEQUENTIAL``, low to high."""
        last = len(SEQUENTIAL) - 1
        places = [last * at / max(count - 1, 1) for at in range(count)]
        lower = [min(int(place), last - 1) for place in places]
        return [
            _mix(SEQUENTIAL[at], SEQUENTIAL[at + 1], place - at)
            for at, place in zip(lower, places, strict=True)
        ]


LIGHT = Palette(
    dark=False,
    background="#ffffff",
    text="#1f2328",
    faint="#667080",
    grid="#e4e7eb",
    classes=("#0072b2", "#56b4e9", "#e69f00", "#8a9099"),
    bad="#c44e00",
    good="#00805d",
    first="#0072b2",
    second="#d55e00",
)
DARK = Palette(
    dark=True,
    background="#12161c",
    text="#e6e9ee",
    faint="#97a1ae",
    grid="#2a313b",
    classes=("#2a7fd0", "#8fd3fb", "#f2b134", "#89919d"),
    bad="#ff8a4c",
    good="#2fc79a",
    first="#58aef0",
    second="#ff9a5c",
)


def palette(dark: bool) -> Palette:
    """The colours of the dark or the light theme."""
    return DARK if dark else LIGHT


def level(value: float, low: float, high: float) -> int:
    """Index into ``SEQUENTIAL`` of ``value`` on the scale from ``low`` to ``high``."""
    if high <= low:
        return len(SEQUENTIAL) - 1
    place = (min(max(value, low), high) - low) / (high - low)
    return min(int(place * len(SEQUENTIAL)), len(SEQUENTIAL) - 1)


def _mix(under: str, over: str, share: float) -> str:
    channels = (
        round(int(under[at : at + 2], 16) * (1 - share) + int(over[at : at + 2], 16) * share)
        for at in (1, 3, 5)
    )
    return "#" + "".join(f"{channel:02x}" for channel in channels)
