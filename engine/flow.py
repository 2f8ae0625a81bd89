"""Writing a chunk: renumber if due, forward, hand out blocks, select, keep (DESIGN §3.8).

The functions are generators: they yield ``Work`` for the scheduler to pack into a forward and
receive what was ``Written``. Prefill, decode and scoring all write through ``write``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from engine.errors import ContextLengthExceeded
from engine.events import composition_data, eviction_data, renumber_runs, residency_data
from engine.ledger import Notes
from engine.plan import next_use, residency, rotary_gap
from engine.policies import observed_queries
from engine.retention import Candidates, select_keep
from engine.row import Row
from engine.runner import Work, Written
from engine.state import SessionState

T = TypeVar("T")
Flow = Generator[Work, Written, T]


class BlockHook(Protocol):
    """Receives raw keys and values of every chunk, before anything of it is evicted."""

    def after_chunk(self, state: SessionState, first: int, raw: Tensor, value: Tensor) -> None:
        """Tokens ``first`` … of ``state``: ``raw``, ``value`` ``[L, Hkv, n, D]``, views that are
        valid until the call returns."""
        ...


class NoBlocks:
    """Keeps no blocks."""

    def after_chunk(self, state: SessionState, first: int, raw: Tensor, value: Tensor) -> None:
        """Nothing to do."""


class EvictionHook(Protocol):
    """May observe a selection, or replace it (replays, tests)."""

    def __call__(self, state: SessionState, keep: Tensor, logical: Tensor) -> Tensor:
        """``keep``: indices ``[L, K]`` selected from ``logical`` ``[L, N]``; returns the choice."""
        ...


@dataclass(slots=True)
class TurnRecord:
    """What a running turn did; becomes ledger events and the answer's ``pace`` object."""

    events: Notes = field(default_factory=Notes)
    schedule: list[list[int]] = field(default_factory=list)
    evicted: int = 0
    renumbers: int = 0
    displaced: int = 0
    last_eviction: Mapping[str, Any] | None = None
    residency: float | None = None
    rotary_gap: int | None = None
    composition: dict[str, Any] = field(default_factory=dict)
    evict_s: float = 0.0
    renumber_s: float = 0.0

    def ran(self, count: int) -> None:
        """Note a chunk of ``count`` tokens; ``schedule`` holds [size, repeats] runs."""
        if self.schedule and self.schedule[-1][0] == count:
            self.schedule[-1][1] += 1
        else:
            self.schedule.append([count, 1])


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes chunks into states. Stateless; holds the hooks."""

    blocks: BlockHook = field(default_factory=NoBlocks)
    on_evict: EvictionHook | None = None
    clock: Callable[[], float] = time.perf_counter

    def write(
        self,
        state: SessionState,
        tokens: list[int],
        record: TurnRecord,
        logits: Literal["last", "all"] = "last",
        measure: bool = False,
    ) -> Flow[Written]:
        """Write ``tokens`` (at most one prefill chunk) at the end of ``state``.

        Args:
            logits: wanted for the last token or for all.
            measure: take residency, rotary gap and composition here (last prompt token, before
                eviction).

        Raises:
            ContextLengthExceeded: the state has no room for them.
        """
        count = len(tokens)
        if count > state.room:
            raise ContextLengthExceeded(state.written + state.room, state.written + count)
        self._renumber_if_due(state, count, record)
        row, first = state.active_row(), state.written - state.shift
        observe = observed_queries(state.policy.retention)
        written = yield Work(row, state.table, tuple(tokens), first, count == 1, logits, observe)
        record.ran(count)
        resident, fresh_score = row.length, written.scores[:, row.length :]
        if observe is None:
            row.score[:, :resident] += written.scores[:, :resident]
        elif written.staged is not None:  # the newest prompt alone counts
            row.score[:, :resident] = written.scores[:, :resident]
        full = state.policy.retention != "none" and resident + count >= row.capacity
        if measure or full:
            logical, physical = self._candidates(row, state.written, first, count)
        if measure:
            needed = state.needed(state.step)
            record.residency = residency(needed, logical)
            record.rotary_gap = rotary_gap(needed, logical, physical, first + count - 1)
            score = torch.cat((row.score[:, :resident], fresh_score), dim=1)
            record.composition = composition_data(state, logical, score)
        if written.staged is None:
            raw, value = (array[:, :, resident : resident + 1] for array in (row.raw, row.value))
        else:
            raw, value = written.staged.raw, written.staged.value
        self.blocks.after_chunk(state, state.written, raw, value)
        start = self.clock()
        if full:
            score = torch.cat((row.score[:, :resident], fresh_score), dim=1)
            if written.staged is None:
                row.append(None, state.written, first, fresh_score)
            keep = self._select(state, logical, score, count, record)
            row.keep(keep, written.staged, logical, physical, score)
        else:
            row.append(written.staged, state.written, first, fresh_score)
        state.written += count
        record.evict_s += self.clock() - start
        return written

    def write_prompt(
        self,
        state: SessionState,
        record: TurnRecord,
        after_chunk: Callable[[], None] = lambda: None,
    ) -> Flow[Written]:
        """Write all tokens of ``state`` that have no KV yet, by the schedule rule, and measure at
        the last.

        Args:
            after_chunk: is told of every chunk.

        Returns:
            What the last chunk made; its ``logits`` are those of the last token.
        """
        chunks = cut(state.tokens[state.written :], state.policy.chunk)
        for chunk, following in pairwise(chunks):
            yield from self.write(state, chunk, record)
            ends = state.written - 1
            if state.step_at(ends) != state.step_at(ends + len(following)):
                self.note_residency(state, record)
            after_chunk()
        written = yield from self.write(state, chunks[-1], record, measure=True)
        after_chunk()
        return written

    @staticmethod
    def note_residency(state: SessionState, record: TurnRecord) -> None:
        """Note what is resident of each message, for the step of the last token written."""
        step = state.step_at(state.written - 1)
        record.events.add("residency", step, residency_data(state))

    def replay(
        self, state: SessionState, tokens: list[int], schedule: list[list[int]], record: TurnRecord
    ) -> Flow[list[Tensor]]:
        """Write known ``tokens`` by a recorded schedule of [size, repeats] runs.

        Returns:
            Logits of every token, one ``[n, V]`` tensor per chunk.
        """
        logits, at = [], 0
        for size, repeats in schedule:
            for _ in range(repeats):
                chunk = tokens[at : at + size]
                logits.append((yield from self.write(state, chunk, record, "all")).logits.clone())
                at += size
        return logits

    def _renumber_if_due(self, state: SessionState, count: int, record: TurnRecord) -> None:
        """DESIGN §3.6: before writing n tokens, number the row when m − c + n > L; or when an
        eviction left gaps, for policies that renumber after each."""
        limit = state.policy.position_limit
        start, before = self.clock(), state.written - state.shift
        row = state.active_row()
        gaps = state.policy.renumber == "eviction" and before > row.length
        if limit is None or (before + count <= limit and not gaps):
            return
        runs = renumber_runs(row)
        row.renumber(state.table)
        state.shift = state.written - row.length
        state.renumbers += 1
        record.renumbers += 1
        record.renumber_s += self.clock() - start
        step = state.step_at(max(state.written - 1, 0))
        data = {"before": before, "after": row.length, "at": state.written, "limit": limit}
        record.events.add("renumber", step, {**data, "runs": runs})

    @staticmethod
    def _candidates(row: Row, written: int, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Logical and physical positions ``[L, N]`` of the row's slots and ``count`` new tokens,
        of which the first is at ``written`` and ``first``."""
        fresh = torch.arange(count, device=row.shape.device).expand(row.shape.layers, count)
        logical = torch.cat((row.logical[:, : row.length], written + fresh), dim=1)
        physical = torch.cat((row.physical[:, : row.length], first + fresh), dim=1)
        return logical, physical

    def _select(
        self, state: SessionState, logical: Tensor, score: Tensor, count: int, record: TurnRecord
    ) -> Tensor:
        """Choose what stays and note it. The step is that of the last token written."""
        step = state.step_at(state.written + count - 1)
        uses = next_use(state.protected(step), logical)
        candidates = Candidates(logical, score, uses, step)
        keep = select_keep(state.policy, candidates)
        if self.on_evict is not None:
            keep = self.on_evict(state, keep, logical)
        data = eviction_data(state, candidates, keep, state.written + count)
        state.evicted += data["evicted"]
        record.evicted += data["evicted"]
        record.displaced += data["displaced"]
        record.last_eviction = data
        record.events.add("eviction", step, data)
        return keep


def cut(tokens: list[int], chunk: int) -> list[list[int]]:
    """The schedule rule (DESIGN §3.8): every ``chunk`` tokens from the turn's first."""
    return [tokens[start : start + chunk] for start in range(0, len(tokens), chunk)]
