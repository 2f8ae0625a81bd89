"""A forked session goes on as its source would have, and neither knows of the other."""

from __future__ import annotations

import pytest
import torch

from engine.engine import KVEngine
from engine.errors import Conflict, SessionBusy, SessionNotFound
from engine.runner import ModelRunner
from engine.types import PlanUpdate, ScoreRequest, TurnDone, TurnEvent
from tests.engine.conftest import MakeEngine
from tests.engine.support import policy_config, request, state_of
from tests.reference.retention import Rules

RULES = Rules("plan_aware", 60, 4, 16, 8, 16, limit=84)


def text(events: list[TurnEvent]) -> str:
    return "".join(getattr(event, "text", "") for event in events)


def play(engine: KVEngine, name: str) -> None:
    plan = PlanUpdate(plan={2: (1,), 3: (1, 2)})
    engine.run(request(name, "x" * 50, plan=plan))
    engine.run(request(name, "y" * 70))


def same(engine: KVEngine, one: str, two: str) -> bool:
    a, b = (state_of(engine, name).export() for name in (one, two))
    rows = [state.pop("row") for state in (a, b)]
    for state in (a, b):
        state.pop("rng")  # of each session's own
    return a == b and all(torch.equal(rows[0][key], rows[1][key]) for key in rows[0])


def test_a_fork_continues_bit_for_bit(tiny: ModelRunner, make_engine: MakeEngine) -> None:
    engine = make_engine(tiny, {"test": policy_config(RULES)})
    play(engine, "source")
    engine.fork("", "source", "twin")
    assert same(engine, "source", "twin") and state_of(engine, "twin").renumbers > 0
    assert engine.events("", "twin") == []
    for question in ("and then? " * 9, "and now?"):
        answers = [text(engine.run(request(name, question))) for name in ("source", "twin")]
        assert answers[0] == answers[1]
        assert same(engine, "source", "twin")
    scored = [
        engine.score(ScoreRequest(name, request(name, "q").messages, ("yes", "no")))
        for name in ("source", "twin")
    ]
    assert scored[0] == scored[1]


def test_source_and_fork_go_their_own_ways(tiny: ModelRunner, make_engine: MakeEngine) -> None:
    engine = make_engine(tiny, {"test": policy_config(RULES)})
    play(engine, "source")
    play(engine, "control")
    engine.fork("", "source", "twin")
    engine.run(request("twin", "something else " * 12))
    assert same(engine, "source", "control")
    engine.run(request("source", "z" * 40))
    engine.run(request("control", "z" * 40))
    assert same(engine, "source", "control") and not same(engine, "source", "twin")
    engine.delete("", "source")
    done = engine.run(request("twin", "still there?"))[-1]
    assert isinstance(done, TurnDone) and done.pace.step == 4


def test_what_cannot_be_forked_is_refused(tiny: ModelRunner, make_engine: MakeEngine) -> None:
    engine = make_engine(tiny, {"test": policy_config(RULES)})
    with pytest.raises(SessionNotFound):
        engine.fork("", "nobody", "twin")
    play(engine, "source")
    with pytest.raises(Conflict, match="there is a session 'source' already"):
        engine.fork("", "source", "source")
    session = engine.store.table.get("", "source")
    session.task = object()  # type: ignore[assignment] # as while a turn runs
    try:
        with pytest.raises(SessionBusy):
            engine.fork("", "source", "twin")
    finally:
        session.task = None
    assert [found["session_id"] for found in engine.sessions("")] == ["source"]
