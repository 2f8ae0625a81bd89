"""``SessionState`` exported and loaded goes on bit for bit."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

from engine.config import PolicyConfig, RopeConfig
from engine.engine import KVEngine
from engine.history import History
from engine.ledger import Ledger
from engine.runner import ModelRunner
from engine.sessions import Session
from engine.state import SessionState
from engine.types import PlanSegment, PlanUpdate, Sampling
from tests.engine.conftest import MakeEngine
from tests.engine.support import outcome, policy_config, request, runner_for, state_of, tiny_llama
from tests.reference.retention import Rules

YARN = RopeConfig(type="yarn", factor=4.0)
POLICIES: dict[str, PolicyConfig] = {
    "pace": policy_config(Rules("plan_aware", 64, 4, 12, 8, 24, 96), "pace"),
    "h2o": policy_config(Rules("h2o", 48, 4, 12, 8, 24), "h2o", YARN),
    "full": policy_config(Rules("none", 900, 0, 0, 1, 24), "full"),
}
SAMPLED = Sampling(max_tokens=15, temperature=1.0, logprobs=True, ignore_eos=True)
PLAN = PlanUpdate(plan={2: (1,), 4: (2,)}, segments=(PlanSegment((0,), (3,)),))


def adopt(engine: KVEngine, name: str, policy: str, data: dict[str, Any]) -> None:
    """Give ``engine`` a session whose state comes from an export."""
    settings = policy_config_of(engine, policy)
    table = engine.runner.table(settings.rope, settings.position_range)
    row = engine.store.pool.acquire(settings.capacity) if data["row"] is not None else None
    state = SessionState.load(data, table, row)
    assert state.policy == settings
    session = Session(
        "", name, POLICIES[policy], state, Ledger(100), History(100, 1 << 20), turns=1
    )
    engine.store.table.add(session)


def policy_config_of(engine: KVEngine, policy: str) -> Any:
    return engine.store._resolved[policy]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("policy", list(POLICIES))
def test_a_loaded_state_continues_bit_for_bit(
    policy: str, dtype: torch.dtype, make_engine: MakeEngine
) -> None:
    runner = runner_for(tiny_llama(initializer_range=0.1).to(dtype))
    engine, other = make_engine(runner, POLICIES), make_engine(runner, POLICIES)
    for turn, text in enumerate(["first " * 20, "second " * 12]):
        plan = PLAN if turn == 0 else PlanUpdate()
        engine.run(request("s", text, sampling=SAMPLED, policy=policy, plan=plan))
    state = state_of(engine, "s")
    assert policy == "full" or state.evicted > 100
    assert policy != "pace" or state.renumbers > 1
    adopt(other, "s", policy, pickle.loads(pickle.dumps(state.export())))
    for text in ("third " * 9, "fourth " * 14):
        ask = request("s", text, sampling=SAMPLED)
        assert outcome(engine.run(ask)) == outcome(other.run(ask))
    first, second = state_of(engine, "s").export(), state_of(other, "s").export()
    rows = first.pop("row"), second.pop("row")
    assert first == second
    assert all(torch.equal(rows[0][name], rows[1][name]) for name in rows[0])


def test_an_export_shares_nothing_with_the_session(
    tiny: ModelRunner, make_engine: MakeEngine
) -> None:
    engine = make_engine(tiny, POLICIES)
    engine.run(request("s", "one", policy="pace"))
    exported = state_of(engine, "s").export()
    copy = pickle.loads(pickle.dumps(exported))
    for text in ("two", "three " * 30):
        engine.run(request("s", text))
    rows = exported.pop("row"), copy.pop("row")
    assert exported == copy
    assert all(torch.equal(rows[0][name], rows[1][name]) for name in rows[0])


def test_an_empty_state_exports_too_and_kv_needs_a_row(
    tiny: ModelRunner, make_engine: MakeEngine
) -> None:
    engine = make_engine(tiny, POLICIES)
    engine.run(request("s", "one", sampling=SAMPLED))
    session = engine.store.table.get("", "s")
    assert session.previous is not None
    empty, held = session.previous.export(), session.state.export()
    assert empty["row"] is None and empty["written"] == 0
    loaded = SessionState.load(empty, session.state.table, None)
    assert loaded.resident == 0 and loaded.row is None and loaded.step == 0
    with pytest.raises(ValueError, match="give it a row"):
        SessionState.load(held, session.state.table, None)
