"""What a session keeps of its past turns: a row of figures each, and what was resident then."""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from engine.errors import StepNotFound
from engine.residents import PackedResidents, Residents, interval_array
from engine.state import SessionState
from engine.types import CLASSES


@dataclass(frozen=True, slots=True)
class StepRow:
    """Figures of one committed turn. Sizes in tokens and bytes, times in seconds, ``time`` in Unix
    seconds; ``first`` … ``end`` are its messages, ``by_class`` is the mean over layers.
    ``read_steps`` and ``read_messages`` are what the step reads by its plan, ``unresolved`` what
    the request's plan named in vain."""

    step: int
    turn: int
    at: int
    first: int
    end: int
    resident: int
    evicted: int
    renumbers: int
    displaced: int
    residency: float | None
    rotary_gap: int | None
    new_tokens: int
    cached_tokens: int
    restored_tokens: int
    completion_tokens: int
    kv_bytes: int
    full_kv_bytes: int
    by_class: tuple[float, ...]
    lowest_kept_score: float | None
    highest_unprotected_score: float | None
    times: tuple[tuple[str, float], ...]
    time: float
    unresolved: tuple[str, ...]
    read_steps: tuple[int, ...]
    read_messages: tuple[int, ...]

    def as_json(self, held: bool) -> dict[str, Any]:
        """The row as readers see it. ``held``: what was resident then is known."""
        own = {name: getattr(self, name) for name in self.__slots__ if name not in _NOT_SHOWN}
        return own | {
            "messages": [self.first, self.end],
            "by_class": dict(zip(CLASSES, self.by_class, strict=True)),
            "times": dict(self.times),
            "unresolved": list(self.unresolved),
            "held": held,
        }


_NOT_SHOWN = ("first", "end", "read_steps", "read_messages")


class History:
    """Past turns of a session, bounded in rows and bytes. The engine's lock guards it.

    Args:
        rows: turns that are remembered; the oldest go first.
        summary_bytes: of what was resident after past steps. What is dropped leaves gaps that grow
            with age, so that what is left reaches back to the first step.
    """

    def __init__(self, rows: int, summary_bytes: int) -> None:
        self.current: Residents | None = None
        self._rows: deque[StepRow] = deque(maxlen=rows)
        self._limit = summary_bytes
        self._packed: list[PackedResidents] = []
        self._size = 0

    @property
    def last(self) -> StepRow | None:
        """The last committed turn."""
        return self._rows[-1] if self._rows else None

    @property
    def size(self) -> int:
        """Bytes of the packed summaries."""
        return self._size

    def add(self, row: StepRow, residents: Residents) -> None:
        """Note a committed turn, in the place of the one it redoes, if any."""
        if self._rows and self._rows[-1].end > row.first:
            self._rows.pop()
        elif self.current is not None and self._limit:
            self._keep(self.current)
        self._rows.append(row)
        self.current = residents

    def replan(self, state: SessionState) -> None:
        """The committed state has another plan."""
        if self.current is not None:
            intervals = interval_array(state.protected(state.step))
            self.current = replace(self.current, intervals=intervals, plan=state.plan)

    def since(self, turn: int) -> list[tuple[StepRow, bool]]:
        """Rows of the turns after ``turn``, oldest first, and whether ``at`` knows them."""
        held = {packed.step: packed.turn for packed in self._packed}
        if self.current is not None:
            held[self.current.step] = self.current.turn
        rows = list(self._rows)
        start = bisect.bisect_right(rows, turn, key=lambda row: row.turn)
        return [(row, held.get(row.step) == row.turn) for row in rows[start:]]

    def until(self, step: int) -> list[StepRow]:
        """Rows of the steps up to ``step``, oldest first."""
        rows = list(self._rows)
        return rows[: bisect.bisect_right(rows, step, key=lambda row: row.step)]

    def at(self, step: int | None) -> Residents | PackedResidents:
        """What was resident after ``step`` (its last turn); None: is now.

        Raises:
            StepNotFound: the session keeps nothing of it.
        """
        current = self.current
        if current is not None and step in (None, current.step):
            return current
        at = bisect.bisect_right(self._packed, step or 0, key=lambda packed: packed.step) - 1
        if at < 0 or self._packed[at].step != step:
            raise StepNotFound(
                f"nothing is kept of what was resident after step {step}; `held` in the session's "
                "/steps says which steps can be asked for",
                param="step",
            )
        return self._packed[at]

    def _keep(self, residents: Residents) -> None:
        packed = PackedResidents.of(residents)
        held = self._packed
        if held and held[-1].step == packed.step:  # an earlier turn of the step
            self._size -= held.pop().size
        held.append(packed)
        self._size += packed.size
        while self._size > self._limit:
            self._size -= held.pop(self._least_missed()).size

    def _least_missed(self) -> int:
        """The summary whose neighbours are nearest to each other, for its age; never the oldest or
        the newest, while there are others."""
        turns = [packed.turn for packed in self._packed]
        gaps = [
            (after - before) / (turns[-1] + 1 - turn)
            for before, turn, after in zip(turns, turns[1:], turns[2:], strict=False)
        ]
        return 1 + gaps.index(min(gaps)) if gaps else 0


def reads_of(rows: Iterable[StepRow]) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Step → the steps of ``rows`` that read it, and message → the steps that read it, rising."""
    by_step: dict[int, list[int]] = {}
    by_message: dict[int, list[int]] = {}
    for row in rows:
        for found, read in ((by_step, row.read_steps), (by_message, row.read_messages)):
            for one in read:
                steps = found.setdefault(one, [])
                if steps[-1:] != [row.step]:  # a step may have several turns
                    steps.append(row.step)
    return by_step, by_message
