"""A session run by the engine and by a reference, recorded and compared turn by turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.engine import KVEngine
from engine.flow import Writer
from engine.policies import observed_queries
from engine.runner import ModelRunner
from engine.state import SessionState
from engine.types import LedgerEvent, PlanSegment, PlanUpdate, Sampling
from tests.engine.support import (
    Recorder,
    build_engine,
    check_engine,
    kept,
    outcome,
    policy_config,
    request,
    state_of,
)
from tests.reference.dense import DenseModel, View
from tests.reference.retention import Rules
from tests.reference.session import Answered, ReferenceSession

EXACT = {"rtol": 1e-10, "atol": 1e-10}
NOTHING = torch.empty(0)
Keep = tuple[int, list[list[int]]]
"""Tokens written at an eviction, and the logical positions that stayed, per layer."""


@dataclass(frozen=True)
class Turn:
    """One request. ``redo``: it takes the place of the turn before it. ``skip``: steps left out
    before its last one."""

    messages: list[tuple[str, str]]
    answer: int
    plan: dict[int, tuple[int, ...]] | None = None
    segments: list[tuple[tuple[int, ...], tuple[int, ...]]] | None = None
    redo: bool = False
    skip: int = 0


@dataclass
class Recording:
    """What the engine says of a session: eviction hook, ledger, logits; by turn."""

    evictions: list[Keep] = field(default_factory=list)
    schedule: list[int] = field(default_factory=list)
    renumbered: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    logits: Tensor = field(default_factory=lambda: torch.empty(0))


def schedule(events: Sequence[LedgerEvent]) -> list[int]:
    """Sizes of the chunks that the turns among ``events`` wrote."""
    turns = [event.data["schedule"] for event in events if event.kind == "turn"]
    return [size for runs in turns for size, repeats in runs for _ in range(repeats)]


class Session:
    """A session of an engine, recorded."""

    def __init__(self, runner: ModelRunner, rules: Rules) -> None:
        self.turns: list[Recording] = []
        self._keeps: list[Keep] = []
        self._seen = 0
        self.recorder = Recorder(runner)
        writer = Writer(on_evict=self._note)
        self.engine: KVEngine = build_engine(runner, {"test": policy_config(rules)}, writer)

    def _note(self, _: SessionState, keep: Tensor, logical: Tensor) -> Tensor:
        self._keeps.append((int(logical[0, -1]) + 1, logical.gather(1, keep).tolist()))
        return keep

    @property
    def state(self) -> SessionState:
        return state_of(self.engine, "s")

    def run(self, turn: Turn, step: int | None) -> Answered:
        """Run a turn and put what was recorded in its place; the engine's answer."""
        if turn.redo:
            self.turns.pop()
        segments = turn.segments and tuple(PlanSegment(*part) for part in turn.segments)
        asked = request(
            "s",
            *turn.messages,
            base="previous" if turn.redo else "current",
            sampling=Sampling(max_tokens=turn.answer, temperature=0.0),
            plan=PlanUpdate(plan=turn.plan, segments=segments, step=step),
        )
        got = outcome(self.engine.run(asked))
        done, new = Recording(logits=self.recorder.take()), self.engine.events("", "s", self._seen)
        self._seen = new[-1].seq
        done.evictions, self._keeps = self._keeps, []
        done.renumbered = [e.data["at"] for e in new if e.kind == "renumber"]
        done.steps = [e.step for e in new if e.kind == "eviction"]
        done.schedule = schedule(new)
        self.turns.append(done)
        pace = got.done.pace
        return Answered(
            list(got.token_ids),
            done.logits,
            pace.residency,
            pace.rotary_gap,
            pace.evicted,
            pace.renumbers,
            pace.displaced,
            len(pace.unresolved),
        )

    def densely(self, model: DenseModel) -> tuple[Tensor, Tensor]:
        """``DenseModel.forward`` of everything written, as the record says it was seen."""
        view = View.recorded(
            model.layers,
            [size for turn in self.turns for size in turn.schedule],
            {at: keep for turn in self.turns for at, keep in turn.evictions},
            [at for turn in self.turns for at in turn.renumbered],
        )
        return model.forward(self.state.tokens[: self.state.written], view)


@contextmanager
def recorded(runner: ModelRunner, rules: Rules) -> Iterator[Session]:
    """A session whose engine is checked and closed at the end."""
    session = Session(runner, rules)
    try:
        yield session
        session.engine.close()
        check_engine(session.engine)
    finally:
        session.recorder.stop()
        session.engine.close()


def float64(values: list[list[float]]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def compare(session: Session, reference: ReferenceSession, turns: Sequence[Turn]) -> None:
    """Run the turns on both; everything must be the same."""
    for turn in turns:
        if turn.redo:
            reference.undo()
        users = sum(role == "user" for role, _ in turn.messages)
        step = reference.spans[-1].step if reference.spans else 0
        given = step + users + turn.skip if users and turn.skip else None
        evictions = len(reference.evictions)
        got = session.run(turn, given)
        wanted = reference.turn(turn.messages, turn.answer, turn.plan, turn.segments, given)
        torch.testing.assert_close(got.logits, wanted.logits, **EXACT)
        got.logits = wanted.logits = NOTHING
        assert vars(got) == vars(wanted)
        expected = reference.evictions[evictions:]
        assert session.turns[-1].steps == [step for step, _ in expected]
        assert [keep for _, keep in session.turns[-1].evictions] == [
            [[layer.logical[i] for i in layer.stay] for layer in layers] for _, layers in expected
        ]
        row = session.state.row
        assert kept(row) == reference.logical
        assert kept(row, "physical") == reference.physical
        mine, theirs = float64(kept(row, "score")), float64(reference.scores)
        torch.testing.assert_close(mine, theirs, **EXACT)


def densely(session: Session, model: DenseModel) -> None:
    """One dense forward gives the logits of the whole session, and its matrix the scores."""
    logits, given = session.densely(model)
    mine = torch.cat([turn.logits for turn in session.turns])
    torch.testing.assert_close(mine, logits, **EXACT)
    row = session.state.active_row()
    if observed_queries(session.state.policy.retention) is None:
        received = given.sum(dim=1).gather(1, row.logical[:, : row.length])
        torch.testing.assert_close(row.score[:, : row.length], received, **EXACT)
