"""Many callers at once on a pool that is too small: only deliberate errors, nothing left over."""

from __future__ import annotations

import random
import threading
from queue import SimpleQueue

import pytest

from engine.engine import KVEngine
from engine.errors import (
    CapacityExceeded,
    Conflict,
    ContextLengthExceeded,
    SessionNotFound,
    TurnCancelled,
)
from engine.runner import ModelRunner
from engine.types import PlanUpdate, Sampling, ScoreRequest, TurnDone, TurnEvent, TurnFailed
from tests.engine.conftest import MakeEngine
from tests.engine.support import Recorder, free_bytes, policy_config, request
from tests.reference.retention import Rules

RULES = {
    "pace": Rules("plan_aware", 40, 2, 6, 4, 16, 64),
    "h2o": Rules("h2o", 24, 2, 6, 8, 24),
    "full": Rules("none", 400, 0, 0, 1, 16),
}
POLICIES = {name: policy_config(rules, name) for name, rules in RULES.items()}
CALLERS, OPERATIONS, SESSIONS = 6, 40, 5
# a session of policy "full" that nobody deletes fills up
EXPECTED = (Conflict, CapacityExceeded, ContextLengthExceeded, SessionNotFound, TurnCancelled)


def one_operation(engine: KVEngine, draw: random.Random) -> None:
    name = f"s{draw.randrange(SESSIONS)}"
    policy = list(POLICIES)[int(name[1:]) % len(POLICIES)]
    text = "abcdef " * draw.randint(1, 12)
    sampling = Sampling(max_tokens=draw.randint(1, 12), ignore_eos=True)
    kind = draw.choice(["turn"] * 4 + ["redo", "score", "cancel", "cancel", "delete", "look"])
    if kind == "score":
        engine.score(ScoreRequest(name, request(name, text).messages, ("yes", "no, never")))
    elif kind == "delete":
        engine.delete("", name)
    elif kind == "look":
        for summary in engine.sessions(None):
            engine.session("", summary["session_id"])
        engine.stats()
    else:
        base = "previous" if kind == "redo" else "current"
        plan = PlanUpdate(plan={draw.randint(2, 6): (1, 2)})
        ask = request(name, text, base=base, policy=policy, plan=plan, sampling=sampling)
        events: SimpleQueue[TurnEvent] = SimpleQueue()
        turn = engine.submit(ask, events.put)
        if kind == "cancel":
            for _ in range(draw.randint(0, 3)):
                if isinstance(events.get(timeout=60), TurnDone | TurnFailed):
                    return
            turn.cancel()
        while not isinstance(event := events.get(timeout=60), TurnDone | TurnFailed):
            pass
        if isinstance(event, TurnFailed):
            raise event.error


@pytest.mark.parametrize("seed", [1, 2])
def test_a_storm_of_callers(seed: int, tiny: ModelRunner, make_engine: MakeEngine) -> None:
    pool = make_engine(tiny, POLICIES).store.pool
    largest = RULES["full"].budget
    limit = pool.session_bytes(largest, True)
    engine = make_engine(tiny, POLICIES, pool_bytes=limit, max_sessions=4)
    recorder, wrong = Recorder(tiny), SimpleQueue[BaseException]()
    outcomes: dict[str, int] = {}

    def call(number: int) -> None:
        draw = random.Random(100 * seed + number)
        for _ in range(OPERATIONS):
            try:
                one_operation(engine, draw)
                name = "done"
            except EXPECTED as error:
                name = type(error).__name__
            except BaseException as error:
                wrong.put(error)
                return
            outcomes[name] = outcomes.get(name, 0) + 1

    threads = [threading.Thread(target=call, args=(number,)) for number in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive(), "a caller waits for ever"
    recorder.stop()
    assert wrong.empty(), f"unexpected: {wrong.get()!r}"
    assert outcomes["done"] > 40 and len(outcomes) >= 3, outcomes
    assert engine.stats()["pool_bytes"] <= limit and engine.stats()["sessions"] <= 4
    engine.check_health()
    for summary in engine.sessions(None):
        engine.delete("", summary["session_id"])
    assert engine.store.pool.bytes_allocated == free_bytes(engine.store.pool)
