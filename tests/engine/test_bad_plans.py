"""Plans that make no sense: what each does, as the README's table says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from engine.engine import KVEngine
from engine.errors import InvalidRequest
from engine.runner import ModelRunner
from engine.types import PlanSegment, PlanUpdate
from tests.engine.conftest import MakeEngine
from tests.engine.support import outcome, policy_config, request, state_of
from tests.reference.retention import Rules

RULES = Rules("plan_aware", budget=80, sinks=4, recent=12, interval=8, chunk=24, limit=128)
NOTHING: dict[str, Any] = {"steps": {}, "messages": {}}


@dataclass(frozen=True)
class Case:
    """A plan sent with step 5 of a session whose steps are 1, 2 and 4 (messages 0 to 5), the texts
    that are unresolved, and what is kept of it."""

    change: PlanUpdate
    unresolved: tuple[str, ...]
    kept: dict[str, Any]


def steps(plan: dict[int, tuple[int, ...]]) -> PlanUpdate:
    return PlanUpdate(plan=plan)


def segment(messages: tuple[int, ...], readers: tuple[int, ...]) -> PlanUpdate:
    return PlanUpdate(segments=(PlanSegment(messages, readers),))


CASES = {
    "reads the future": Case(
        steps({7: (9, 1)}),
        ("step 7 cannot read step 9: it is not earlier",),
        {"steps": {"1": [7]}, "messages": {}},
    ),
    "reads itself": Case(
        steps({7: (7,)}), ("step 7 cannot read step 7: it is not earlier",), NOTHING
    ),
    "a cycle": Case(
        steps({7: (8,), 8: (7,)}),
        ("step 7 cannot read step 8: it is not earlier",),
        {"steps": {"7": [8]}, "messages": {}},
    ),
    "a cycle of three": Case(
        steps({7: (6,), 8: (7,), 6: (8,)}),
        ("step 6 cannot read step 8: it is not earlier",),
        {"steps": {"6": [7], "7": [8]}, "messages": {}},
    ),
    "a reader in the past": Case(
        steps({2: (1,), 9: (1,)}),
        ("step 2 is past and cannot read step 1",),
        {"steps": {"1": [9]}, "messages": {}},
    ),
    "a reader of messages in the past": Case(
        segment((0,), (2, 9)),
        ("step 2 is past and cannot read message 0",),
        {"steps": {}, "messages": {"0": [9]}},
    ),
    "messages out of range": Case(
        segment((1, 8, 10**9), (9,)),
        (
            "message 8 does not exist: the transcript has 7",
            "message 1000000000 does not exist: the transcript has 7",
        ),
        {"steps": {}, "messages": {"1": [9]}},
    ),
    "a step that was skipped": Case(
        steps({9: (3, 4)}),
        ("step 9 cannot read step 3: it does not exist",),
        {"steps": {"4": [9]}, "messages": {}},
    ),
    "a step that has not come": Case(steps({9: (8,)}), (), {"steps": {"8": [9]}, "messages": {}}),
    "a step that may never come": Case(
        steps({10**9: (1,)}), (), {"steps": {"1": [10**9]}, "messages": {}}
    ),
    "the same twice": Case(steps({9: (1, 1)}), (), {"steps": {"1": [9]}, "messages": {}}),
    "reads nothing": Case(steps({9: ()}), (), NOTHING),
}


@pytest.fixture
def engine(tiny: ModelRunner, make_engine: MakeEngine) -> KVEngine:
    made = make_engine(tiny, {"test": policy_config(RULES)})
    made.run(request("s", "one"))
    made.run(request("s", "two"))
    made.run(request("s", "four", plan=PlanUpdate(step=4)))
    return made


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_bad_plans_are_listed_or_refused(case: Case, engine: KVEngine) -> None:
    before = state_of(engine, "s")
    strict = replace(case.change, strict=True)
    if case.unresolved:
        with pytest.raises(InvalidRequest) as caught:
            engine.run(request("s", "five", plan=strict))
        assert all(text in caught.value.message for text in case.unresolved)
        assert caught.value.param == ("pace.plan" if case.change.plan else "pace.segments")
        assert state_of(engine, "s") is before
        with pytest.raises(InvalidRequest):
            engine.blueprint("", "s", strict)
        assert state_of(engine, "s") is before
    got = outcome(engine.run(request("s", "five", plan=case.change)))
    assert got.done.pace.unresolved == case.unresolved
    assert engine.session("", "s")["plan"] == case.kept
    # and the session goes on, past every reader
    for step in range(6, 11):
        got = outcome(engine.run(request("s", f"more {step} " * 8)))
        assert got.done.pace.unresolved == () and got.done.pace.step == step
        rho = got.done.pace.residency
        assert rho is None or 0 < rho <= 1
    left = {"1": [10**9]} if "1" in case.kept["steps"] and 10**9 in case.kept["steps"]["1"] else {}
    assert engine.session("", "s")["plan"] == {"steps": left, "messages": {}}


def test_a_segment_cannot_be_read_before_it_is_written(engine: KVEngine) -> None:
    """In a transcript that arrives in bulk a reader may be ahead of the session, yet before the
    message; the step that a message belongs to may read it: tool results come within a step."""
    messages = ["five", ("tool", "result"), ("assistant", "ok"), "six", ("tool", "result"), "seven"]
    plan = segment((6, 10), (5, 6, 9))
    got = outcome(engine.run(request("s", *messages, plan=plan)))
    assert got.done.pace.unresolved == ("step 5 cannot read message 10: it belongs to step 6",)
    assert engine.session("", "s")["plan"]["messages"] == {"6": [5, 6, 9], "10": [6, 9]}


def test_more_than_fits_is_displaced_and_counted(engine: KVEngine) -> None:
    """Accepted under strict too: nothing is wrong with it."""
    everything = PlanUpdate(plan={20: (5, 6, 7, 8)}, strict=True)
    displaced = 0
    for step in range(5, 10):
        plan = everything if step == 5 else PlanUpdate()
        got = outcome(engine.run(request("s", f"words {step} " * 8, plan=plan)))
        assert got.done.pace.unresolved == ()
        displaced += got.done.pace.displaced
    assert displaced > 100
    assert state_of(engine, "s").resident < 88
