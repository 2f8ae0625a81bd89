"""``check_integrity`` finds what is broken, and a broken session is a result, not an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from engine.engine import KVEngine
from engine.integrity import check_integrity, state_problems
from engine.log import ForkableLog, token_log
from engine.plan import Plan
from engine.pool import KVPool
from engine.runner import ModelRunner, Work, Written
from engine.state import SessionState
from engine.types import PlanUpdate, Sampling
from tests.engine.conftest import MakeEngine
from tests.engine.support import policy_config, request, state_of
from tests.reference.retention import Rules

RULES = Rules("plan_aware", budget=80, sinks=4, recent=12, interval=8, chunk=24, limit=128)
Break = Callable[[SessionState], object]


@pytest.fixture
def engine(tiny: ModelRunner, make_engine: MakeEngine) -> KVEngine:
    """With a session that evicted and renumbered."""
    made = make_engine(tiny, {"test": policy_config(RULES)})
    for turn in range(3):
        made.run(request("s", f"turn {turn} " + "abcdefg " * 9, plan=PlanUpdate(plan={9: (1,)})))
    assert made.session("", "s")["renumbers"] > 0
    return made


def put(name: str, slot: int, value: float) -> Break:
    """Break one entry of an index array of the last layer, or of KV."""

    def broken(state: SessionState) -> None:
        array = getattr(state.active_row(), name)
        array[(1, 0, slot, 3) if array.dim() == 4 else (-1, slot)] = value

    return broken


def change(**fields: int) -> Break:
    def broken(state: SessionState) -> None:
        for name, by in fields.items():
            setattr(state, name, getattr(state, name) + by)

    return broken


def move_message(state: SessionState) -> None:
    spans = list(state.messages)
    spans[2] = replace(spans[2], start=spans[2].start + 1)
    state.messages = ForkableLog(spans)


def drop_step(state: SessionState) -> None:
    steps = list(state.steps)
    state.steps = ForkableLog([steps[0], *steps[2:]])


def shorten_log(state: SessionState) -> None:
    state.tokens = token_log(state.tokens[: state.written - 1])


BROKEN: dict[str, tuple[Break, str]] = {
    "order": (put("logical", 20, 10**6), "logical order"),
    "sink": (put("logical", 0, 1), "a sink is missing"),
    "recent": (lambda s: put("logical", s.resident - 1, s.written)(s), "of the recent window"),
    "future": (lambda s: put("logical", s.resident - 1, s.written)(s), "that was not written"),
    "position": (put("physical", 20, 0), "physical order"),
    "limit": (lambda s: put("physical", s.resident - 1, 128)(s), "reaches the limit"),
    "negative": (put("physical", 0, -1), "negative"),
    "next": (lambda s: put("physical", s.resident - 1, s.written - s.shift)(s), "below the next"),
    "score": (put("score", 5, float("nan")), "score is not finite"),
    "negative score": (put("score", 5, -1.0), "a score is negative"),
    "key": (put("raw", 5, float("inf")), "raw key is not finite"),
    "value": (put("value", 5, float("nan")), "value is not finite"),
    "length": (lambda s: setattr(s.active_row(), "length", s.resident - 1), "not those written"),
    "overfull": (lambda s: setattr(s.active_row(), "length", 1000), "1000 slots in use of 88"),
    "written": (change(written=1), "not those written"),
    "evicted": (change(evicted=-2), "not those written"),
    "shift": (change(shift=1), "below the next one"),
    "shift too far": (change(shift=10**6), "next position is out of range"),
    "no renumber": (lambda s: setattr(s, "renumbers", 0), "shifted without a renumber"),
    "messages": (move_message, "do not cover the tokens"),
    "steps": (drop_step, "not that of the messages"),
    "log": (shorten_log, "more is written than there are tokens"),
    "plan": (lambda s: setattr(s, "plan", Plan({1: (9, 9)})), "do not rise"),
}


@pytest.mark.parametrize(("damage", "text"), BROKEN.values(), ids=BROKEN)
def test_it_sees_what_is_broken(damage: Break, text: str, engine: KVEngine) -> None:
    state = state_of(engine, "s")
    check_integrity(state)
    saved = state.export()
    damage(state)
    assert any(text in problem for problem in state_problems(state)), state_problems(state)
    with pytest.raises(AssertionError, match=text):
        check_integrity(state)
    report = engine.session("", "s", check=True)["integrity"]
    assert report == {"ok": False, "problems": state_problems(state)}
    # whole again, so that the engine's own check passes
    assert state.row is not None
    state.row.length = saved["row"]["logical"].shape[1]
    restored = SessionState.load(saved, state.table, state.row)
    engine.store.table.get("", "s").state = restored
    check_integrity(restored)


def test_the_rotated_keys_of_a_running_turn_are_compared_bit_for_bit(
    engine: KVEngine, tiny: ModelRunner, integrity: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One last bit of one key, when its turn commits; every test here looks for that."""
    forward = tiny.forward

    def nudged(works: list[Work], pool: KVPool) -> list[Written]:
        written = forward(works, pool)
        if works[0].decode:
            rotated = works[0].row.require_rotated()
            rotated[1, 0, 7, 3] = torch.nextafter(rotated[1, 0, 7, 3], torch.tensor(torch.inf))
        return written

    monkeypatch.setattr(tiny, "forward", nudged)
    engine.run(request("s", "more", sampling=Sampling(2, temperature=0.0)))
    assert integrity == ["a rotated key is not rotate(raw, p)"]
    integrity.clear()


def test_a_whole_session_has_no_problems_idle_or_running(
    engine: KVEngine, tiny: ModelRunner
) -> None:
    whole = {"ok": True, "problems": []}
    assert engine.session("", "s", check=True)["integrity"] == whole
    assert "integrity" not in engine.session("", "s")
    seen = []
    forward = tiny.forward

    def watched(works, pool):  # type: ignore[no-untyped-def]
        seen.append(engine.session("", "s", check=True)["integrity"])
        return forward(works, pool)

    tiny.forward = watched  # type: ignore[method-assign]
    try:
        engine.run(request("s", "while this is answered " * 5))
    finally:
        tiny.forward = forward  # type: ignore[method-assign]
    assert len(seen) > 5 and all(report == whole for report in seen)


def test_the_state_before_the_last_turn_is_checked_too(engine: KVEngine) -> None:
    session = engine.store.table.get("", "s")
    assert session.previous is not None
    session.previous.evicted += 1
    report = engine.session("", "s", check=True)["integrity"]
    assert report["problems"] == [
        "before the last turn: evicted and resident tokens are not those written"
    ]
    session.previous.evicted -= 1


def test_a_state_that_cannot_even_be_looked_at_is_a_result(engine: KVEngine) -> None:
    state = state_of(engine, "s")
    row = state.active_row()
    logical, row.logical = row.logical, row.logical[:, :3]
    report = engine.session("", "s", check=True)["integrity"]
    row.logical = logical
    assert not report["ok"] and "the check failed" in report["problems"][0]
