"""DESIGN §3.7: without eviction the stock model, without plan and renumber H2O, exactly."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from transformers import LlamaForCausalLM

from engine.config import RopeConfig
from engine.runner import ModelRunner
from engine.types import PlanUpdate, Sampling
from tests.engine.conftest import MakeEngine
from tests.engine.support import (
    GREEDY,
    RANGE,
    Recorder,
    kept,
    outcome,
    policy_config,
    request,
    run_together,
    runner_for,
    state_of,
    tiny_llama,
)
from tests.reference.llama import DenseLlama
from tests.reference.retention import Rules
from tests.reference.session import ReferenceSession

EXACT = {"rtol": 1e-10, "atol": 1e-10}
YARN = RopeConfig(type="yarn", factor=4.0)
# lengths around the chunk sizes below, one token to several chunks, and long answers
TURNS = [("a" * n, answer) for n, answer in [(3, 1), (70, 3), (1, 40), (33, 2), (150, 25)]]


def texts(seed: int, count: int, longest: int) -> list[str]:
    """User messages of random length and letters."""
    draw = random.Random(seed)
    sizes = [draw.randint(1, longest) for _ in range(count)]
    return ["".join(draw.choices("abcdefgh .\n", k=size)) for size in sizes]


@pytest.fixture(scope="module")
def stock() -> LlamaForCausalLM:
    return tiny_llama()


@pytest.fixture
def recorder(tiny: ModelRunner) -> Iterator[Recorder]:
    recording = Recorder(tiny)
    yield recording
    recording.stop()


def stock_logits(model: LlamaForCausalLM, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([tokens]), use_cache=False).logits[0]
    return logits


@pytest.mark.parametrize("chunk", [1, 7, 64, 100, 512])
def test_without_eviction_every_logit_is_the_stock_models(
    chunk: int,
    stock: LlamaForCausalLM,
    tiny: ModelRunner,
    recorder: Recorder,
    make_engine: MakeEngine,
) -> None:
    rules = Rules("none", budget=1000, sinks=0, recent=0, interval=1, chunk=chunk)
    engine = make_engine(tiny, {"test": policy_config(rules)})
    for text, answer in TURNS:
        engine.run(request("s", text, sampling=Sampling(max_tokens=answer, temperature=0.0)))
    state = state_of(engine, "s")
    assert state.written > 350 and max(max(batch) for batch in recorder.batches) <= chunk
    written = list(state.tokens)[: state.written]
    torch.testing.assert_close(recorder.take(), stock_logits(stock, written), **EXACT)


def test_packed_sessions_have_the_stock_models_logits_too(
    stock: LlamaForCausalLM, tiny: ModelRunner, recorder: Recorder, make_engine: MakeEngine
) -> None:
    rules = Rules("none", budget=600, sinks=0, recent=0, interval=1, chunk=32)
    engine = make_engine(tiny, {"test": policy_config(rules)})
    sampling = Sampling(max_tokens=30, temperature=0.0, ignore_eos=True)
    sizes = {"a": 5, "b": 200, "c": 31, "d": 1, "e": 90}
    run_together(engine, [request(n, "x" * size, sampling=sampling) for n, size in sizes.items()])
    assert max(len(batch) for batch in recorder.batches) == len(sizes)
    assert any(1 in batch and max(batch) > 1 for batch in recorder.batches)  # decode with prefill
    for name in sizes:
        state = state_of(engine, name)
        written = list(state.tokens)[: state.written]
        torch.testing.assert_close(recorder.take(state.row), stock_logits(stock, written), **EXACT)


H2O = [
    Rules("h2o", budget=60, sinks=4, recent=16, interval=8, chunk=32),
    Rules("h2o", budget=40, sinks=0, recent=1, interval=1, chunk=64),
    Rules("h2o", budget=48, sinks=2, recent=40, interval=20, chunk=7),
    Rules("h2o", budget=64, sinks=8, recent=8, interval=3, chunk=200),
]


@pytest.mark.parametrize("rope", [RopeConfig(), YARN], ids=["default", "yarn"])
@pytest.mark.parametrize("rules", H2O, ids=lambda r: f"B{r.budget}-E{r.interval}-C{r.chunk}")
def test_h2o_is_the_naive_h2o(
    rules: Rules, rope: RopeConfig, tiny: ModelRunner, recorder: Recorder, make_engine: MakeEngine
) -> None:
    engine = make_engine(tiny, {"test": policy_config(rules, rope=rope)})
    factor = rope.factor if rope.type == "yarn" else None
    reference = ReferenceSession(DenseLlama(tiny_llama(), RANGE, factor), rules)
    # chunks of more than the attention's query block (128) are among them
    for text in texts(seed=rules.budget, count=5, longest=max(120, 2 * rules.chunk)):
        got = outcome(engine.run(request("s", text, sampling=Sampling(24, temperature=0.0))))
        expected = reference.turn([("user", text)], max_tokens=24)
        assert list(got.token_ids) == expected.tokens
        torch.testing.assert_close(recorder.take(), expected.logits, **EXACT)
        row = state_of(engine, "s").row
        assert kept(row) == reference.logical
        torch.testing.assert_close(
            torch.tensor(kept(row, "score")), torch.tensor(reference.scores), **EXACT
        )
        assert got.done.pace.evicted == expected.evicted
    assert reference.evicted > 3 * rules.budget
    assert len(set(map(tuple, reference.logical))) > 1, "all layers kept the same tokens"


@pytest.mark.parametrize("rope", [RopeConfig(), YARN], ids=["default", "yarn"])
def test_plan_aware_without_a_plan_is_h2o(
    rope: RopeConfig, tiny: ModelRunner, recorder: Recorder, make_engine: MakeEngine
) -> None:
    # with default rope the limit is there but never reached; YaRN goes without a limit
    sizes = {"budget": 60, "sinks": 4, "recent": 16, "interval": 8, "chunk": 32}
    limit = RANGE if rope.type == "default" else None
    policies = {
        "h2o": policy_config(Rules("h2o", **sizes), "h2o", rope),
        "pace": policy_config(Rules("plan_aware", **sizes, limit=limit), "pace", rope),
    }
    engine = make_engine(tiny, policies)
    logits, rows = {}, {}
    for name in policies:
        for text in texts(seed=3, count=6, longest=150):
            engine.run(request(name, text, policy=name, sampling=GREEDY))
        state = state_of(engine, name)
        assert state.renumbers == 0 and state.evicted > 200
        logits[name], rows[name] = recorder.take(), state.row
    assert torch.equal(logits["h2o"], logits["pace"])
    for array in ("logical", "physical", "score"):
        assert kept(rows["h2o"], array) == kept(rows["pace"], array)


def test_a_limit_that_is_never_reached_is_no_limit_under_a_plan_too(
    tiny: ModelRunner, recorder: Recorder, make_engine: MakeEngine
) -> None:
    free = Rules("plan_aware", budget=60, sinks=4, recent=16, interval=8, chunk=32)
    far = replace(free, limit=RANGE)
    engine = make_engine(
        tiny, {"free": policy_config(free, "free"), "far": policy_config(far, "far")}
    )
    plan = PlanUpdate(plan={3: (2,), 6: (3, 4)})
    logits, rows = [], []
    for name, asked in (("free", plan), ("far", plan), ("free", PlanUpdate())):
        session = f"{name} {asked.plan is None}"
        for turn, text in enumerate(texts(seed=3, count=6, longest=100)):
            change = asked if turn == 0 else PlanUpdate()
            engine.run(request(session, text, policy=name, plan=change, sampling=GREEDY))
        state = state_of(engine, session)
        assert state.renumbers == 0 and state.evicted > 200
        logits.append(recorder.take())
        rows.append([kept(state.row, array) for array in ("logical", "physical", "score")])
    assert torch.equal(logits[0], logits[1]) and rows[0] == rows[1]
    assert rows[0][0] != rows[2][0], "the plan changed nothing"


def test_yarn_is_the_stock_model_with_yarn_in_its_config(
    recorder: Recorder, tiny: ModelRunner, make_engine: MakeEngine
) -> None:
    rules = Rules("none", budget=1000, sinks=0, recent=0, interval=1, chunk=64)
    engine = make_engine(tiny, {"test": policy_config(rules, rope=YARN)})
    engine.run(request("s", "y" * 300))
    state = state_of(engine, "s")
    stretched = tiny_llama(
        max_position_embeddings=4 * RANGE,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10_000.0,
            "factor": 4.0,
            "original_max_position_embeddings": RANGE,
        },
    )
    expected = stock_logits(stretched, list(state.tokens)[: state.written])
    torch.testing.assert_close(recorder.take(), expected, **EXACT)
    plain = stock_logits(tiny_llama(), list(state.tokens)[: state.written])
    assert not torch.allclose(plain, expected, atol=1e-2)


@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "linear", "factor": 3.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        },
        {"rope_type": "default", "partial_rotary_factor": 0.5},
    ],
    ids=["linear", "llama3", "partial"],
)
def test_a_models_own_rope_is_kept(parameters: dict, make_engine: MakeEngine) -> None:
    settings = {"rope_parameters": {"rope_theta": 10_000.0, **parameters}}
    runner = runner_for(tiny_llama(seed=5, **settings))
    recording = Recorder(runner)
    rules = Rules("none", budget=1000, sinks=0, recent=0, interval=1, chunk=64)
    engine = make_engine(runner, {"test": policy_config(rules)})
    engine.run(request("s", "z" * 300))
    state = state_of(engine, "s")
    expected = stock_logits(tiny_llama(seed=5, **settings), list(state.tokens)[: state.written])
    torch.testing.assert_close(recording.take(), expected, **EXACT)
