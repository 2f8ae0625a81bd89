"""What is resident after a turn, on the host: whole for the committed state, packed for past steps.

Readers look at these copies, never at the rows of the pool, which running turns write to and
dropped sessions give back.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine.plan import Interval, Plan
from engine.retention import NO_USE
from engine.state import SessionState
from engine.types import CLASSES

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_SCORE_LEVELS = 254
# Scores hardly repeat: looking for repetitions costs time and finds none.
_DEFLATE = (1, zlib.DEFLATED, -15, 9)


@dataclass(frozen=True, slots=True, eq=False)
class Residents:
    """The index of a committed state's row. Immutable.

    ``logical``, ``physical`` (None: not kept) and ``score`` are ``[L, N]``, rising logical
    positions per layer. ``at``, ``tokens`` and ``messages`` say how many of the session were
    written, known and begun. ``intervals`` ``[3, K]``: starts, ends and next use of what the plan
    read then.
    """

    step: int
    turn: int
    at: int
    tokens: int
    messages: int
    sinks: int
    recent: int
    logical: Ints
    physical: Ints | None
    score: Floats
    intervals: Ints
    plan: Plan

    @classmethod
    def of(cls, state: SessionState, turn: int) -> Residents:
        """Copy them from a state nobody writes to now: one transfer from the device."""
        row, n = state.active_row(), state.resident
        score = row.score[:, :n].to(torch.float64).view(torch.int64)
        stacked = torch.stack((row.logical[:, :n], row.physical[:, :n], score)).cpu().numpy()
        return cls(
            step=state.step,
            turn=turn,
            at=state.written,
            tokens=len(state.tokens),
            messages=len(state.messages),
            sinks=state.policy.sinks,
            recent=state.policy.recent,
            logical=stacked[0],
            physical=stacked[1],
            score=stacked[2].view(np.float64),
            intervals=interval_array(state.protected(state.step)),
            plan=state.plan,
        )

    @property
    def layers(self) -> int:
        """Layers of the model."""
        return int(self.logical.shape[0])

    @property
    def count(self) -> int:
        """Tokens resident in each layer."""
        return int(self.logical.shape[1])

    def next_use(self, logical: Ints) -> Ints:
        """Next use of the tokens at ``logical`` (any shape), ``NO_USE`` for none."""
        starts, ends, uses = self.intervals
        if not len(starts):
            return np.full(logical.shape, NO_USE)
        at = np.maximum(np.searchsorted(starts, logical, side="right") - 1, 0)
        inside = (logical >= starts[at]) & (logical < ends[at])
        return np.where(inside, uses[at], NO_USE)

    def classes(self, logical: Ints) -> npt.NDArray[np.int8]:
        """Index into ``CLASSES`` of resident tokens (any shape)."""
        found = np.where(self.next_use(logical) < NO_USE, 2, 3).astype(np.int8)
        # of the newest tokens none was evicted, so their positions say which they are
        found[logical >= self.at - self.recent] = 1
        found[logical < self.sinks] = 0
        return found

    def by_class(self) -> tuple[float, ...]:
        """Tokens of each class, mean over layers."""
        counts = np.bincount(self.classes(self.logical).ravel(), minlength=len(CLASSES))
        return tuple((counts / self.layers).tolist())


def interval_array(intervals: Sequence[Interval]) -> Ints:
    """``[3, K]``: starts, ends, next uses."""
    columns = [[i.start for i in intervals], [i.end for i in intervals]]
    return np.array([*columns, [i.next_use for i in intervals]], dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class PackedResidents:
    """``Residents`` of a past step in few bytes: which tokens every layer held, exactly, and their
    scores in 254 logarithmic levels; without physical positions."""

    step: int
    turn: int
    at: int
    tokens: int
    messages: int
    sinks: int
    recent: int
    shape: tuple[int, int]
    planes: int
    deltas: bytes
    low: float
    high: float
    scores: bytes
    intervals: bytes
    plan: bytes

    @classmethod
    def of(cls, whole: Residents) -> PackedResidents:
        """Pack; O(row + plan)."""
        deltas = np.diff(whole.logical, axis=1, prepend=0).ravel().astype("<i8")
        planes = (int(deltas.max(initial=0)).bit_length() + 7) // 8
        split = deltas.view(np.uint8).reshape(-1, 8)[:, :planes].T
        low, high, codes = _levels(whole.score)
        return cls(
            whole.step,
            whole.turn,
            whole.at,
            whole.tokens,
            whole.messages,
            whole.sinks,
            whole.recent,
            shape=(whole.layers, whole.count),
            planes=planes,
            deltas=zlib.compress(split.tobytes(), 1),
            low=low,
            high=high,
            scores=_squeezed(codes.tobytes()),
            intervals=zlib.compress(_touched(whole).tobytes(), 1),
            plan=zlib.compress(
                json.dumps([list(whole.plan.by_step.items()), list(whole.plan.by_message.items())])
                .encode(), 1
            ),
        )  # fmt: skip

    @property
    def size(self) -> int:
        """Bytes it takes, about."""
        parts = (self.deltas, self.scores, self.intervals, self.plan)
        return sum(map(len, parts)) + _OVERHEAD

    def unpack(self) -> Residents:
        """What was packed."""
        layers, count = self.shape
        split = np.zeros((layers * count, 8), dtype=np.uint8)
        planes = np.frombuffer(zlib.decompress(self.deltas), dtype=np.uint8)
        split[:, : self.planes] = planes.reshape(self.planes, layers * count).T
        codes = np.frombuffer(zlib.decompress(self.scores, -15), dtype=np.uint8)
        by_step, by_message = json.loads(zlib.decompress(self.plan))
        return Residents(
            self.step,
            self.turn,
            self.at,
            self.tokens,
            self.messages,
            self.sinks,
            self.recent,
            logical=split.view("<i8").reshape(self.shape).astype(np.int64).cumsum(axis=1),
            physical=None,
            score=_from_levels(self.low, self.high, codes).reshape(self.shape),
            intervals=np.frombuffer(zlib.decompress(self.intervals), np.int64).reshape(3, -1),
            plan=Plan(_readers(by_step), _readers(by_message)),
        )


_OVERHEAD = 600
"""Bytes of the object itself and its numbers."""


def _touched(whole: Residents) -> Ints:
    """The intervals that hold resident tokens."""
    starts, ends, _ = whole.intervals
    if not len(starts):
        return whole.intervals
    at = np.maximum(np.searchsorted(starts, whole.logical, side="right") - 1, 0)
    hit = np.zeros(len(starts), dtype=bool)
    hit[at[whole.logical < ends[at]]] = True
    return whole.intervals[:, hit]


def _levels(score: Floats) -> tuple[float, float, npt.NDArray[np.uint8]]:
    """Logarithms of the lowest and highest positive score, and codes: 0 for no score, 1 … 255 from
    lowest to highest in equal ratios."""
    positive = score > 0
    if not positive.any():
        return 0.0, 0.0, np.zeros(score.shape, np.uint8)
    logs = np.log(np.where(positive, score, 1.0).astype(np.float32))
    low, high = float(logs[positive].min()), float(logs[positive].max())
    codes = 1.5 + (logs - low) * (_SCORE_LEVELS / max(high - low, 1e-9))
    return low, high, np.where(positive, codes, 0).astype(np.uint8)


def _from_levels(low: float, high: float, codes: npt.NDArray[np.uint8]) -> Floats:
    table = np.exp(low + (high - low) * (np.arange(256) - 1.0) / _SCORE_LEVELS)
    table[0] = 0.0
    found: Floats = table[codes]
    return found


def _squeezed(data: bytes) -> bytes:
    machine = zlib.compressobj(*_DEFLATE, zlib.Z_HUFFMAN_ONLY)
    return machine.compress(data) + machine.flush()


def _readers(pairs: Any) -> dict[int, tuple[int, ...]]:
    return {key: tuple(readers) for key, readers in pairs}
