"""Where definitions and probes stand among the filler of a session (paper, section 4.1)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from engine.errors import ConfigError

Layout = Literal["single", "distance"]

DEFINED_AT = 0.20
PROBED_AT = (0.52, 0.74, 0.98)
"""The single layout's places, as parts of the session."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Filler chunks of ``size`` tokens: ``before`` the definitions, then ``between[i]`` before the
    probes of group i. ``groups`` holds the indices of the probes."""

    size: int
    before: int
    between: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]

    @property
    def chunks(self) -> int:
        """All of them."""
        return self.before + sum(self.between)


def arrange(
    layout: Layout, tokens: int, distance: int | None, talk: int, probes: int, chunk: int
) -> Arrangement:
    """Divide a session of ``tokens`` tokens.

    The size of the chunks is near ``chunk`` and such that a whole number of them fills the session;
    it does not depend on the distance, so that sessions which differ in it alone share their
    beginnings. In the single layout the probes come in three groups of (nearly) equal size.

    Args:
        distance: tokens between definitions and first probe, to the nearest chunk.
        talk: tokens of everything but filler: system prompt, definitions, probes, their answers.
        probes: how many there are.
        chunk: tokens of a filler step, answer included.

    Raises:
        ConfigError: the session is too short for that.
    """
    room = tokens - talk
    if room < chunk // 2:
        raise ConfigError(
            f"sessions.tokens: {tokens} leaves no room for filler: definitions and probes take "
            f"{talk} tokens; use at least {talk + chunk}"
        )
    count = max(1, round(room / chunk))
    size = room // count
    if layout == "distance":
        assert distance is not None
        behind = max(1, round(distance / size))
        if behind > count:
            raise ConfigError(
                f"sessions.distances: {distance} does not fit a session of {tokens} tokens, of "
                f"which {talk} are definitions and probes"
            )
        return Arrangement(size, count - behind, (behind,), (tuple(range(probes)),))
    parts = len(PROBED_AT)
    groups = [
        tuple(i for i in range(probes) if i * parts // probes == part) for part in range(parts)
    ]
    places = [round(part * count) for part in (DEFINED_AT, *PROBED_AT)]
    places[-1] = count  # the last probes end the session
    between = tuple(late - early for early, late in pairwise(places))
    return Arrangement(size, places[0], between, tuple(groups))
