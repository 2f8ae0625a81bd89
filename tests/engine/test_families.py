"""DESIGN §3.2, §3.7, §6 for every family: the same identities on tiny models of each.

The references run the stock model's own code; nothing of the engine is in them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.alone import drive, new_state
from engine.engine import KVEngine
from engine.flow import TurnRecord, Writer
from engine.pool import KVPool
from engine.runner import ModelRunner
from engine.types import PlanUpdate, Sampling
from tests.engine.families import FAMILIES, Family
from tests.engine.recorded import EXACT, Turn, compare, densely, float64, recorded, schedule
from tests.engine.support import (
    RANGE,
    Recorder,
    begin,
    build_engine,
    check_engine,
    kept,
    outcome,
    policy_config,
    request,
    resolved,
    runner_for,
    state_of,
)
from tests.reference.dense import DenseModel
from tests.reference.h2o import naive_h2o
from tests.reference.retention import Rules
from tests.reference.session import ReferenceSession, opening
from tests.reference.stock import StockModel

CHUNKS = (1, 7, 64)
H2O = Rules("h2o", budget=40, sinks=2, recent=8, interval=6, chunk=24)
PACE = Rules("plan_aware", budget=40, sinks=2, recent=8, interval=6, chunk=24, limit=70)
# H2O when there is no plan, as long as no limit is reached
OFF = {"unplanned": replace(PACE, limit=None), "far": replace(PACE, limit=RANGE)}
NONE = {
    f"none-{chunk}": Rules("none", budget=400, sinks=0, recent=0, interval=1, chunk=chunk)
    for chunk in CHUNKS
}
ROOMY = {"roomy": replace(PACE, budget=400, limit=500)}
RULES = {"h2o": H2O} | OFF | NONE | ROOMY
TEXTS = ["a key is ab.\n" * 4, "b", "the cab had a flag; " * 3, "g fed ha" * 6, "ab?"]
PLAN = {1: {3: (1, 2), 4: (3,)}, 3: {4: (2, 3), 5: (3, 1)}}
ANSWER = 7


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


@pytest.fixture(scope="module")
def runner(family: Family) -> ModelRunner:
    return runner_for(family.model())


@pytest.fixture(scope="module")
def plain(family: Family) -> Any:
    return family.model()


@pytest.fixture(scope="module")
def stock(family: Family) -> StockModel:
    return StockModel(family.model(attention="eager"))


@pytest.fixture(scope="module")
def dense(family: Family) -> DenseModel:
    return DenseModel(family.model(attention="eager"))


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


@pytest.mark.parametrize("name", [*NONE, *ROOMY])
def test_without_eviction_every_logit_is_the_stock_models(
    name: str, plain: Any, engine: KVEngine, recorder: Recorder
) -> None:
    """With no policy at all, and with one and a plan in a row that never fills."""
    answers = []
    for text in TEXTS[: 2 if name == "none-1" else 3]:
        plan = PlanUpdate(plan=PLAN[1] if name in ROOMY else None)
        answers.append(answer(engine, name, text, plan=plan))
    state = state_of(engine, name)
    assert state.evicted == state.renumbers == 0
    assert max(map(max, recorder.batches)) == RULES[name].chunk
    written = list(state.tokens)[: state.written]
    assert all(layer == list(range(state.written)) for layer in kept(state.row))
    with torch.inference_mode():
        expected = plain(torch.tensor([written]), use_cache=False).logits[0]
    torch.testing.assert_close(recorder.take(), expected, **EXACT)
    spans = [span for span in state.messages if span.role == "assistant"]
    for span, tokens in zip(spans, answers, strict=True):
        first = span.start + len(opening("assistant"))
        likeliest = expected[first - 1 : first - 1 + len(tokens)].argmax(dim=1)
        assert list(tokens) == likeliest.tolist()


def test_with_everything_off_it_is_the_naive_h2o(
    engine: KVEngine, recorder: Recorder, stock: StockModel, dense: DenseModel
) -> None:
    """No plan is H2O, and a limit that is not reached is no limit."""
    reference = ReferenceSession(stock, H2O)
    parts = []
    for text in TEXTS:
        expected = reference.turn([("user", text)], ANSWER)
        assert list(answer(engine, "h2o", text)) == expected.tokens
        logits = recorder.take()
        parts.append(logits)
        torch.testing.assert_close(logits, expected.logits, **EXACT)
        row = state_of(engine, "h2o").row
        assert kept(row) == reference.logical
        scores, theirs = float64(kept(row, "score")), float64(reference.scores)
        torch.testing.assert_close(scores, theirs, **EXACT)
        for name in OFF:
            assert list(answer(engine, name, text)) == expected.tokens
            assert torch.equal(recorder.take(), logits)
            assert all(
                kept(state_of(engine, name).row, array) == kept(row, array)
                for array in ("logical", "physical", "score")
            )
    tokens = iter(state_of(engine, "h2o").tokens)
    chunks = [list(islice(tokens, size)) for size in schedule(engine.events("", "h2o"))]
    sizes = (H2O.budget, H2O.sinks, H2O.recent, H2O.interval)
    again, held, received = naive_h2o(dense, chunks, *sizes)
    torch.testing.assert_close(torch.cat(parts), again, **EXACT)
    assert held == kept(row)
    torch.testing.assert_close(scores, float64(received), **EXACT)
    assert reference.evicted > 3 * H2O.budget
    assert all(state_of(engine, name).renumbers == 0 for name in OFF)
    assert len(set(map(tuple, reference.logical))) > 1, "all layers kept the same tokens"


def test_pace_is_the_naive_pace_and_one_dense_forward_of_the_stock_model(
    runner: ModelRunner, stock: StockModel, dense: DenseModel
) -> None:
    """Pruned, rotated at new positions and attended to by the family's own code; and all of it
    again from nothing but the recorded schedule and keep sets."""
    with recorded(runner, PACE) as session:
        reference = ReferenceSession(stock, PACE)
        turns = [Turn([("user", t)], ANSWER, PLAN.get(n)) for n, t in enumerate(TEXTS, start=1)]
        compare(session, reference, turns)
        densely(session, dense)
        works = session.recorder.works
        assert max(work.first + len(work.tokens) for work in works) <= PACE.limit
    assert reference.renumbers >= 4


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
