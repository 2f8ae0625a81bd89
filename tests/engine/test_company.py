"""DESIGN §3.8: a session computes the same alone and beside seven others."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from engine.config import PolicyConfig, RopeConfig
from engine.engine import KVEngine
from engine.runner import ModelRunner
from engine.types import PlanUpdate, Sampling, TurnRequest
from tests.engine.conftest import MakeEngine
from tests.engine.support import (
    Outcome,
    Recorder,
    kept,
    policy_config,
    request,
    run_together,
    runner_for,
    state_of,
    tiny_llama,
)
from tests.reference.retention import Rules

POLICIES: dict[str, PolicyConfig] = {
    "pace": policy_config(Rules("plan_aware", 64, 4, 12, 8, 24, 128), "pace"),
    "h2o": policy_config(
        Rules("h2o", 48, 4, 12, 16, 40), "h2o", RopeConfig(type="yarn", factor=4.0)
    ),
    "full": policy_config(Rules("none", 1500, 0, 0, 1, 24), "full"),
    "near": policy_config(Rules("h2o", 40, 2, 8, 4, 16, 64), "near"),
}
SESSIONS = 8
TURNS = 3


def turns_of(name: str) -> list[TurnRequest]:
    """Three turns whose lengths, policy, plan and sampling depend on the session."""
    draw, number = random.Random(name), int(name[1:])
    policy = list(POLICIES)[number % len(POLICIES)]
    turns = []
    for step in range(1, TURNS + 1):
        text = "".join(draw.choices("abcdefgh .\n", k=draw.choice((1, 20, 90, 200))))
        sampling = Sampling(
            max_tokens=draw.randint(2, 30),
            temperature=(0.0, 0.8)[number % 2],
            seed=number,
            ignore_eos=True,
            logprobs=True,
        )
        plan = PlanUpdate(plan={2: (1,), 3: (1,)} if step == 1 else None)
        turns.append(request(name, text, policy=policy, sampling=sampling, plan=plan))
    return turns


def assert_same(
    alone: KVEngine, beside: KVEngine, lone: Outcome, got: Outcome, name: str, tolerance: float
) -> None:
    assert got.token_ids == lone.token_ids and got.text == lone.text
    assert got.logprobs == pytest.approx(lone.logprobs, abs=tolerance)
    assert got.done == lone.done
    first, second = state_of(alone, name), state_of(beside, name)
    for array in ("logical", "physical"):
        assert kept(first.row, array) == kept(second.row, array)
    assert (first.written, first.shift, first.evicted) == (
        second.written,
        second.shift,
        second.evicted,
    )


@pytest.mark.parametrize(("model", "tolerance"), [("tiny", 1e-9), ("protocol", 1e-4)])
def test_alone_and_beside_seven_others(
    model: str,
    tolerance: float,
    tiny: ModelRunner,
    protocol_model: Path,
    make_engine: MakeEngine,
) -> None:
    runner = (
        tiny
        if model == "tiny"
        else ModelRunner.load(protocol_model, device="cpu", dtype=torch.float32)
    )
    names = [f"s{n}" for n in range(SESSIONS)]
    requests = {name: turns_of(name) for name in names}
    beside = make_engine(runner, POLICIES)
    recorder = Recorder(runner)
    together = [
        run_together(beside, [requests[name][turn] for name in names]) for turn in range(TURNS)
    ]
    recorder.stop()
    assert max(len(batch) for batch in recorder.batches) == SESSIONS
    mixed = [batch for batch in recorder.batches if 1 in batch and max(batch) > 1]
    assert len(mixed) > 10, "prefill and decode did not meet"
    alone = make_engine(runner, POLICIES)
    for name in names:
        for turn in range(TURNS):
            (lone,) = run_together(alone, [requests[name][turn]]).values()
        assert_same(alone, beside, lone, together[-1][name], name, tolerance)
    evictors = [name for name in names if state_of(alone, name).evicted > 50]
    assert len(evictors) == SESSIONS * 3 // 4
    assert any(state_of(alone, name).renumbers > 2 for name in names)


def test_packing_changes_no_key_and_no_score_beyond_rounding(make_engine: MakeEngine) -> None:
    """What is kept of the KV itself agrees, not just where it is."""
    runner = runner_for(tiny_llama(layers=2))
    alone, beside = make_engine(runner, POLICIES), make_engine(runner, POLICIES)
    names = ["s0", "s1", "s3"]
    for turn in range(TURNS):
        run_together(beside, [turns_of(name)[turn] for name in names])
        for name in names:
            run_together(alone, [turns_of(name)[turn]])
    for name in names:
        first, second = state_of(alone, name).active_row(), state_of(beside, name).active_row()
        n = first.length
        for array in ("raw", "value"):
            a, b = getattr(first, array)[:, :, :n], getattr(second, array)[:, :, :n]
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(first.score[:, :n], second.score[:, :n], rtol=1e-9, atol=1e-9)
