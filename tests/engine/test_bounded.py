"""DESIGN §3.6: bounded positions against a naive PACE, and turns that end where it hurts."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from engine.alone import drive, new_state
from engine.errors import EngineFailure
from engine.flow import TurnRecord, Writer
from engine.pool import KVPool
from engine.runner import ModelRunner, Work
from engine.types import PlanSegment, PlanUpdate, Sampling
from tests.engine.conftest import MakeEngine
from tests.engine.support import (
    RANGE,
    Recorder,
    begin,
    kept,
    outcome,
    policy_config,
    request,
    resolved,
    state_of,
    tiny_llama,
)
from tests.reference.llama import DenseLlama
from tests.reference.retention import Rules
from tests.reference.session import ReferenceSession

EXACT = {"rtol": 1e-10, "atol": 1e-10}
PACE = [
    # the smallest limit allowed, a roomy one, and a chunk larger than the row
    Rules("plan_aware", budget=64, sinks=4, recent=12, interval=8, chunk=24, limit=96),
    Rules("plan_aware", budget=48, sinks=2, recent=8, interval=5, chunk=32, limit=200),
    Rules("plan_aware", budget=40, sinks=0, recent=4, interval=16, chunk=90, limit=146),
    Rules("h2o", budget=50, sinks=4, recent=10, interval=10, chunk=16, limit=76),
    Rules("plan_aware", 48, 4, 8, 8, 32, limit=128, foresight="additive"),
    Rules("streaming", 48, 4, 8, 8, 32, limit=96, renumber="eviction"),
    Rules("snapkv", 60, 4, 8, 8, 70, limit=160),
]
# Reading step → steps read, sent with the turn of that number; the last one replaces the first.
PLANS = {1: {3: (1,), 5: (1, 2), 6: (4,)}, 5: {6: (4,), 7: (5,), 8: (2, 5)}}
SEGMENTS = {2: [((1,), (4,)), ((0, 3), (9,))]}


@pytest.mark.parametrize("rules", PACE, ids=lambda r: f"{r.retention}-L{r.limit}-C{r.chunk}")
def test_pace_is_the_naive_pace(rules: Rules, tiny: ModelRunner, make_engine: MakeEngine) -> None:
    recorder = Recorder(tiny)
    engine = make_engine(tiny, {"test": policy_config(rules)})
    reference = ReferenceSession(DenseLlama(tiny_llama(), RANGE), rules)
    draw = random.Random(rules.budget)
    gaps: list[int | None] = []
    for turn in range(1, 9):
        size = draw.randint(1, 110)
        messages = [("user", "".join(draw.choices("abcdefgh .\n", k=size)))]
        if turn == 1:
            messages.insert(0, ("system", "be brief"))
        if turn == 4:
            messages.append(("tool", "result " * 5))
        segments = SEGMENTS.get(turn)
        update = PlanUpdate(
            plan=PLANS.get(turn),
            segments=None if segments is None else tuple(PlanSegment(*s) for s in segments),
        )
        sampling = Sampling(max_tokens=20, temperature=0.0)
        got = outcome(engine.run(request("s", *messages, sampling=sampling, plan=update)))
        expected = reference.turn(messages, 20, PLANS.get(turn), segments)
        assert list(got.token_ids) == expected.tokens
        torch.testing.assert_close(recorder.take(), expected.logits, **EXACT)
        row, pace = state_of(engine, "s").row, got.done.pace
        assert kept(row) == reference.logical
        assert kept(row, "physical") == reference.physical
        figures = (pace.residency, pace.rotary_gap, pace.evicted, pace.renumbers)
        wanted = (expected.residency, expected.rotary_gap, expected.evicted, expected.renumbers)
        assert figures == pytest.approx(wanted)
        gaps.append(pace.rotary_gap)
    recorder.stop()
    assert reference.renumbers >= 4 and reference.evicted > 300
    assert rules.retention != "plan_aware" or sum(gap is not None for gap in gaps) >= 4
    assert max(work.first + len(work.tokens) for work in recorder.works) <= rules.limit


# budget, interval, chunk: E and C of one token, C below, at and above E, and above the whole row
SIZES = list(itertools.product((16, 31), (1, 2, 7), (1, 2, 6, 7, 8, 60)))


@pytest.mark.parametrize(("budget", "interval", "chunk"), SIZES)
def test_turns_that_end_around_an_eviction(
    budget: int, interval: int, chunk: int, tiny: ModelRunner
) -> None:
    """At the smallest limit allowed, turns end one token before the row is full, exactly when
    it is and one after, by prompt and by decode; every row is whole in between."""
    limit = budget + interval + chunk
    rules = Rules("h2o", budget, 2, 5, interval, chunk, limit)
    policy, writer = resolved(rules), Writer()
    pool = KVPool(tiny.shape, 1 << 30, chunk)
    state = new_state(tiny, policy, pool)
    full, total = budget + interval, 0

    def write(tokens: list[int]) -> None:
        before, record = state.resident, TurnRecord()
        drive(writer.write(state, tokens, record), tiny, pool)
        state.active_row().check_integrity(state.table)
        crossed = before + len(tokens) >= full
        assert state.resident == (budget if crossed else before + len(tokens))
        assert record.evicted == (before + len(tokens) - budget if crossed else 0)
        assert state.written - state.shift <= limit

    def turn(count: int, prompt: int) -> None:
        """``prompt`` tokens in chunks, the rest of ``count`` one by one."""
        nonlocal total
        begin(state, [(7 * total + i) % 256 for i in range(count)], step=state.step + 1)
        start, total = state.written, total + count
        for at in range(start, start + prompt, chunk):
            write(state.tokens[at : min(at + chunk, start + prompt)])
        while state.written < total:
            write([state.tokens[state.written]])
        state.commit()

    turn(count=budget, prompt=budget)
    for off, prefill in itertools.product((-1, 0, 1), (True, False)):
        if state.resident > budget:  # up to the next eviction, token by token
            turn(full - state.resident, prompt=0)
        count = interval + off
        if count:
            turn(count, prompt=count if prefill else 1)
        if off < 1:
            assert state.resident == budget + (count if off < 0 else 0)
    turn(3 * chunk + 1, prompt=3 * chunk + 1)
    assert state.evicted + state.resident == state.written == total
    assert state.renumbers >= 1


def test_a_position_at_the_limit_is_refused(tiny: ModelRunner) -> None:
    policy = resolved(Rules("h2o", 16, 2, 4, 4, 8, 28))
    pool = KVPool(tiny.shape, 1 << 30, 8)
    state = new_state(tiny, policy, pool)
    row, table = state.active_row(), state.table
    for first, tokens in ((27, (1,)), (20, (1,) * 8)):
        tiny.forward([Work(row, table, tokens, first, len(tokens) == 1, "last")], pool)
    for first, tokens in ((28, (1,)), (21, (1,) * 8), (1000, (1, 2))):
        with pytest.raises(IndexError, match="not below the limit 28"):
            tiny.forward([Work(row, table, tokens, first, len(tokens) == 1, "last")], pool)


def test_a_session_that_writes_past_its_limit_fails_its_turn(
    tiny: ModelRunner, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were the renumbering lost, no forward would run with a position out of range."""
    rules = Rules("h2o", 16, 2, 4, 4, 8, 28)
    engine = make_engine(tiny, {"test": policy_config(rules)})
    monkeypatch.setattr(Writer, "_renumber_if_due", lambda *_: None)
    with pytest.raises(EngineFailure):
        engine.run(request("s", "a" * 60))
    assert engine.sessions(None) == []
