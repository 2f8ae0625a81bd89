"""A plan given between turns: what it protects, what it replaces, when it is refused."""

from __future__ import annotations

import json
from queue import SimpleQueue
from typing import Any

import pytest

from engine.engine import KVEngine
from engine.errors import InvalidRequest, PolicyMismatch, SessionBusy, SessionNotFound
from engine.plan import Plan
from engine.report import MOST_PLAN_PAIRS, plan_json
from engine.runner import ModelRunner
from engine.types import PlanSegment, PlanUpdate, Sampling, TurnDone, TurnEvent
from tests.engine.conftest import MakeEngine
from tests.engine.support import Outcome, kept, outcome, policy_config, request, state_of
from tests.reference.retention import Rules
from tests.reference.session import message_tokens

RULES = Rules("plan_aware", budget=112, sinks=4, recent=12, interval=8, chunk=24, limit=160)
POLICIES = {"test": policy_config(RULES)}
FACT = "the code is 4711, the ship is the Aurora"
FACT_TOKENS = set(range(len(message_tokens("user", FACT))))


def run(engine: KVEngine, text: str, **settings: Any) -> Outcome:
    sampling = Sampling(max_tokens=8, temperature=0.0, logprobs=True)
    return outcome(engine.run(request("s", text, sampling=sampling, **settings)))


def filler(step: int) -> str:
    return f"filler {step} " * 12


def fact_left(engine: KVEngine) -> int:
    """Tokens of the fact that are resident in every layer."""
    return min(len(FACT_TOKENS & set(layer)) for layer in kept(state_of(engine, "s").row))


def assert_same(engine: KVEngine, twin: KVEngine) -> None:
    mine, other = state_of(engine, "s"), state_of(twin, "s")
    assert list(mine.tokens) == list(other.tokens)
    assert kept(mine.row) == kept(other.row)
    assert kept(mine.row, "physical") == kept(other.row, "physical")
    assert mine.plan == other.plan


@pytest.mark.parametrize(
    "change",
    [PlanUpdate(plan={4: (1,)}), PlanUpdate(segments=(PlanSegment((0,), (4,)),))],
    ids=["plan", "segments"],
)
def test_the_next_evictions_keep_what_it_names(
    change: PlanUpdate, tiny: ModelRunner, make_engine: MakeEngine
) -> None:
    """As a plan that comes with the next turn would; without either, the fact is lost."""
    engine, twin, unplanned = (make_engine(tiny, POLICIES) for _ in range(3))
    for one in (engine, twin, unplanned):
        run(one, FACT)
    answer = engine.blueprint("", "s", change)
    assert (answer["session_id"], answer["step"], answer["unresolved"]) == ("s", 1, [])
    for step in (2, 3, 4):
        got = run(engine, filler(step))
        assert got == run(twin, filler(step), plan=change if step == 2 else PlanUpdate())
        assert got.done.pace.residency == (1.0 if step == 4 else None)
        run(unplanned, filler(step))
        if step < 4:
            assert fact_left(engine) == len(FACT_TOKENS)
    assert_same(engine, twin)
    assert fact_left(unplanned) < len(FACT_TOKENS)


def test_a_plan_taken_back_protects_no_longer(tiny: ModelRunner, make_engine: MakeEngine) -> None:
    engine, twin = make_engine(tiny, POLICIES), make_engine(tiny, POLICIES)
    for one in (engine, twin):
        run(one, FACT, plan=PlanUpdate(plan={9: (1,)}))
        run(one, filler(2))
        assert fact_left(one) == len(FACT_TOKENS)
    answer = engine.blueprint("", "s", PlanUpdate(plan={}))
    assert answer["plan"] == {"steps": {}, "messages": {}}
    for step in (3, 4):
        for one in (engine, twin):
            run(one, filler(step))
    assert fact_left(engine) < len(FACT_TOKENS) == fact_left(twin)


@pytest.mark.parametrize("turns", [1, 3])
def test_a_turn_that_is_redone_goes_by_the_plan_given_last(
    turns: int, tiny: ModelRunner, make_engine: MakeEngine
) -> None:
    engine, twin = make_engine(tiny, POLICIES), make_engine(tiny, POLICIES)
    change = PlanUpdate(plan={turns + 2: (1,)}, segments=(PlanSegment((0,), (turns + 1,)),))
    for one in (engine, twin):
        run(one, FACT, plan=PlanUpdate(plan={turns + 1: (1,)}))
        for step in range(2, turns + 1):
            run(one, filler(step))
    engine.blueprint("", "s", change)
    again = {"base": "previous", "known": 2 * (turns - 1)}
    text = filler(turns) if turns > 1 else FACT + "!"
    assert run(engine, text, **again) == run(twin, text, plan=change, **again)
    for step in (turns + 1, turns + 2):
        got = run(engine, filler(step))
        assert got == run(twin, filler(step))
        assert got.done.pace.residency == 1.0
    assert_same(engine, twin)


def test_parts_left_out_stay_as_each_state_had_them(
    tiny: ModelRunner, make_engine: MakeEngine
) -> None:
    engine = make_engine(tiny, POLICIES)
    run(engine, FACT, plan=PlanUpdate(plan={5: (1,)}))
    run(engine, filler(2), plan=PlanUpdate(plan={6: (1,)}))
    answer = engine.blueprint("", "s", PlanUpdate(segments=(PlanSegment((1, 3), (9, 7)),)))
    assert answer == {
        "session_id": "s",
        "step": 2,
        "plan": {"steps": {"1": [6]}, "messages": {"1": [7, 9], "3": [7, 9]}},
        "unresolved": [],
    }
    session = engine.store.table.get("", "s")
    assert session.state.plan == Plan({1: (6,)}, {1: (7, 9), 3: (7, 9)})
    assert session.previous is not None
    assert session.previous.plan == Plan({1: (5,)}, {1: (7, 9), 3: (7, 9)})
    assert engine.blueprint("", "s", PlanUpdate()) == answer
    assert engine.session("", "s")["plan"] == answer["plan"]


def test_the_last_step_can_still_read(tiny: ModelRunner, make_engine: MakeEngine) -> None:
    """Tool results belong to the step of the message before them."""
    engine = make_engine(tiny, POLICIES)
    run(engine, FACT)
    run(engine, "look it up")
    assert engine.blueprint("", "s", PlanUpdate(plan={2: (1,)}))["unresolved"] == []
    got = outcome(engine.run(request("s", ("tool", "a result " * 10))))
    assert (got.done.pace.step, got.done.pace.residency) == (2, 1.0)


@pytest.mark.parametrize(
    ("change", "lines", "param"),
    [
        (PlanUpdate(plan={1: (1,)}), ["step 1 is past and cannot read step 1"], "plan"),
        (
            PlanUpdate(plan={7: (9, 1)}),
            ["step 7 cannot read step 9: it is not earlier"],
            "plan",
        ),
        (
            PlanUpdate(plan={7: (1,)}, segments=(PlanSegment((0, 4), (8,)),)),
            ["message 4 does not exist: the transcript has 4"],
            "segments",
        ),
    ],
)
def test_what_cannot_be_resolved_is_listed_or_refused(
    change: PlanUpdate,
    lines: list[str],
    param: str,
    tiny: ModelRunner,
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(tiny, POLICIES)
    run(engine, FACT, plan=PlanUpdate(plan={5: (1,)}))
    run(engine, "more")
    session = engine.store.table.get("", "s")
    before = (session.state, session.previous)
    strict = PlanUpdate(change.plan, change.segments, strict=True)
    with pytest.raises(InvalidRequest, match=lines[0]) as caught:
        engine.blueprint("", "s", strict)
    assert caught.value.param == param
    assert (session.state, session.previous) == before
    assert engine.blueprint("", "s", change)["unresolved"] == lines
    resolved = {1: (7,)} if 7 in (change.plan or {}) else {}
    assert session.state.plan == Plan(resolved, {0: (8,)} if change.segments else {})


def test_refusals(tiny: ModelRunner, make_engine: MakeEngine) -> None:
    engine = make_engine(tiny, POLICIES | {"other": policy_config(RULES, "other")})
    change = PlanUpdate(plan={5: (1,)})
    with pytest.raises(SessionNotFound):
        engine.blueprint("", "s", change)
    events = SimpleQueue[TurnEvent]()
    with engine.scheduler._wake:  # nothing runs until the lock is free
        engine.submit(request("s", FACT), events.put)
        with pytest.raises(SessionBusy):
            engine.blueprint("", "s", change)
    while not isinstance(events.get(timeout=60), TurnDone):
        pass
    with pytest.raises(SessionNotFound):
        engine.blueprint("somebody", "s", change)
    with pytest.raises(PolicyMismatch) as caught:
        engine.blueprint("", "s", change, "other")
    assert caught.value.param == "policy"
    assert state_of(engine, "s").plan == Plan()
    assert engine.blueprint("", "s", change, "test")["plan"]["steps"] == {"1": [5]}


def test_it_counts_as_a_use_of_the_session(tiny: ModelRunner, make_engine: MakeEngine) -> None:
    """The session longest unused makes room for a new one."""
    engine = make_engine(tiny, POLICIES, max_sessions=2)
    for name in ("one", "two"):
        engine.run(request(name, "hello"))
    engine.blueprint("", "one", PlanUpdate(plan={5: (1,)}))
    engine.run(request("three", "hello"))
    assert {found["session_id"] for found in engine.sessions(None)} == {"one", "three"}


@pytest.mark.parametrize(
    "plan",
    [
        Plan({10**8 + n: (10**9,) for n in range(100_000)}, {n: (10**9,) for n in range(9)}),
        Plan({1: (5, 6)}, {7: tuple(range(10**8, 10**8 + 100_000))}),
    ],
    ids=["many-read", "many-readers"],
)
def test_the_largest_plan_is_shown_in_part(plan: Plan) -> None:
    shown = plan_json(plan)
    assert len(json.dumps(shown)) < 700_000
    pairs, more = 0, shown.pop("more")
    for name, all_of in (("steps", plan.by_step), ("messages", plan.by_message)):
        for key, readers in shown[name].items():
            assert tuple(readers) == all_of[int(key)][: len(readers)] != ()
            pairs += len(readers)
    total = sum(len(r) for read in (plan.by_step, plan.by_message) for r in read.values())
    assert pairs == MOST_PLAN_PAIRS and more == total - pairs
