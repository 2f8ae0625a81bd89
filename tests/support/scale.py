"""How long the tests that only find something by repetition go on."""

from __future__ import annotations

import os

VARIABLE = "PACE_SCALE"
DEFAULT = 0.02


def scaled(usual: int) -> int:
    """``usual`` at the default scale, proportionally more at a larger ``PACE_SCALE``.

    1 is a soak: fifty times the usual, hours instead of minutes.
    """
    return max(1, round(usual * float(os.environ.get(VARIABLE, DEFAULT)) / DEFAULT))
