"""DESIGN §3.2, §3.7, §6 for every family: the same identities on tiny models of each.

The references run the stock model's own code; nothing of the engine is in them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.engine import KVEngine
from engine.flow import TurnRecord, Writer
from engine.pool import KVPool
from engine.runner import ModelRunner
from engine.types import PlanUpdate, Sampling
from tests.engine.families import FAMILIES, Family
from tests.engine.support import (
    RANGE,
    Recorder,
    begin,
    build_engine,
    check_engine,
    drive,
    kept,
    new_state,
    outcome,
    policy_config,
    request,
    resolved,
    runner_for,
    state_of,
)
from tests.reference.retention import Rules
from tests.reference.session import ReferenceSession
from tests.reference.stock import StockModel

EXACT = {"rtol": 1e-10, "atol": 1e-10}
CHUNKS = (1, 7, 64)
H2O = Rules("h2o", budget=40, sinks=2, recent=8, interval=6, chunk=24)
FAR = Rules("plan_aware", budget=40, sinks=2, recent=8, interval=6, chunk=24, limit=RANGE)
PACE = Rules("plan_aware", budget=40, sinks=2, recent=8, interval=6, chunk=24, limit=70)
RULES = {"h2o": H2O, "far": FAR, "pace": PACE} | {
    f"none-{chunk}": Rules("none", budget=400, sinks=0, recent=0, interval=1, chunk=chunk)
    for chunk in CHUNKS
}
TEXTS = ["a key is ab.\n" * 4, "b", "the cab had a flag; " * 3, "g fed ha" * 6, "ab?"]
PLAN = {1: {3: (1,), 4: (1, 2)}, 3: {4: (1,), 5: (1, 3)}}
ANSWER = 7


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


@pytest.fixture(scope="module")
def runner(family: Family) -> ModelRunner:
    return runner_for(family.model())


@pytest.fixture(scope="module")
def engine(runner: ModelRunner) -> Iterator[KVEngine]:
    policies = {name: policy_config(rules, name) for name, rules in RULES.items()}
    built = build_engine(runner, policies)
    yield built
    built.close()
    check_engine(built)


@pytest.fixture
def recorder(runner: ModelRunner) -> Iterator[Recorder]:
    recording = Recorder(runner)
    yield recording
    recording.stop()


def answer(engine: KVEngine, policy: str, text: str, **settings: Any) -> tuple[int, ...]:
    """A greedy turn in the session of that policy's name."""
    sampling = Sampling(max_tokens=ANSWER, temperature=0.0)
    events = engine.run(request(policy, text, policy=policy, sampling=sampling, **settings))
    return outcome(events).token_ids


def test_the_model_was_asked_well(family: Family, runner: ModelRunner) -> None:
    found = runner.found
    assert (found.layers, found.heads) == (3, 4)
    assert (found.kv_heads, found.head_dim) == (family.kv_heads, family.head_dim)
    assert (found.dims, found.rotation) == (family.dims, family.rotation)
    assert runner.checked is not None and runner.checked.difference < 1e-10


@pytest.mark.parametrize("chunk", CHUNKS)
def test_without_eviction_every_logit_is_the_stock_models(
    chunk: int, family: Family, engine: KVEngine, recorder: Recorder
) -> None:
    for text in TEXTS[: 2 if chunk == 1 else 3]:
        answer(engine, f"none-{chunk}", text)
    state = state_of(engine, f"none-{chunk}")
    assert state.evicted == 0 and max(map(max, recorder.batches)) == chunk
    written = torch.tensor([list(state.tokens)[: state.written]])
    with torch.inference_mode():
        expected = family.model()(written, use_cache=False).logits[0]
    torch.testing.assert_close(recorder.take(), expected, **EXACT)


def test_h2o_is_the_naive_h2o_and_so_is_pace_with_everything_off(
    family: Family, engine: KVEngine, recorder: Recorder
) -> None:
    reference = ReferenceSession(StockModel(family.model(attention="eager")), H2O)
    for text in TEXTS:
        expected = reference.turn([("user", text)], ANSWER)
        assert list(answer(engine, "h2o", text)) == expected.tokens
        logits = recorder.take()
        torch.testing.assert_close(logits, expected.logits, **EXACT)
        row = state_of(engine, "h2o").row
        assert kept(row) == reference.logical
        scores, theirs = (
            torch.tensor(values, dtype=torch.float64)
            for values in (kept(row, "score"), reference.scores)
        )
        torch.testing.assert_close(scores, theirs, **EXACT)
        # a limit that is not reached, and no plan
        assert list(answer(engine, "far", text)) == expected.tokens
        assert torch.equal(recorder.take(), logits)
        assert kept(state_of(engine, "far").row) == kept(row)
    assert reference.evicted > 3 * H2O.budget and state_of(engine, "far").renumbers == 0
    assert len(set(map(tuple, reference.logical))) > 1, "all layers kept the same tokens"


def test_renumbered_keys_are_pruned_rotated_and_attended_as_the_stock_model_does(
    family: Family, engine: KVEngine, recorder: Recorder
) -> None:
    reference = ReferenceSession(StockModel(family.model(attention="eager")), PACE)
    for turn, text in enumerate(TEXTS, start=1):
        update = PlanUpdate(plan=PLAN.get(turn))
        expected = reference.turn([("user", text)], ANSWER, PLAN.get(turn))
        assert list(answer(engine, "pace", text, plan=update)) == expected.tokens
        torch.testing.assert_close(recorder.take(), expected.logits, **EXACT)
        row = state_of(engine, "pace").row
        assert kept(row) == reference.logical
        assert kept(row, "physical") == reference.physical
    assert reference.renumbers >= 4
    assert max(work.first + len(work.tokens) for work in recorder.works) <= PACE.limit


def own_rotation(model: Any, layer: int, raw: Tensor, positions: Tensor) -> Tensor:
    """``raw`` ``[H, T, D]`` turned by the family's own code."""
    attention = [m for m in model.modules() if type(m).__name__.endswith("Attention")][layer]
    if not getattr(attention, "use_rope", True):
        return raw
    cos, sin = model.base_model.rotary_emb(raw, position_ids=positions[None])
    turn = sys.modules[type(attention).__module__].apply_rotary_pos_emb
    rotated: Tensor = turn(raw[None], raw[None], cos, sin)[1][0]
    return rotated


def test_keys_after_renumbers_are_the_familys_own_bit_for_bit(family: Family) -> None:
    runner, stock = runner_for(family.model(torch.float32)), family.model(torch.float32)
    policy = resolved(Rules("h2o", 24, 2, 4, 4, 8, 36))
    pool, record, writer = KVPool(runner.shape, 1 << 30, 8), TurnRecord(), Writer()
    state = new_state(runner, policy, pool)
    text = iter("some 200 letters that differ, " * 9)
    while record.renumbers < 8:
        begin(state, [ord(next(text)) for _ in range(1 + len(state.tokens) % 8)])
        drive(writer.write(state, state.tokens[state.written :], record), runner, pool)
    row = state.active_row()
    row.check_integrity(state.table)
    moved = row.logical[:, : row.length] != row.physical[:, : row.length]
    assert bool(moved.any(dim=1).all())
    for layer in range(runner.shape.layers):
        raw, positions = row.raw[layer, :, : row.length], row.physical[layer, : row.length]
        expected = own_rotation(stock, layer, raw, positions)
        assert torch.equal(row.require_rotated()[layer, :, : row.length], expected)
        assert (layer in family.rotation.unturned) == torch.equal(expected, raw)
