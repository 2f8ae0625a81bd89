"""DESIGN §3.8: a turn is a transaction. What fails or is cancelled was never there."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from queue import SimpleQueue

import pytest

from engine.engine import KVEngine
from engine.errors import EngineFailure, SessionDiverged, SessionNotFound, TurnCancelled
from engine.runner import ModelRunner, Work
from engine.types import (
    PlanUpdate,
    Sampling,
    ScoreRequest,
    TurnDone,
    TurnEvent,
    TurnFailed,
)
from tests.engine.conftest import MakeEngine
from tests.engine.support import (
    Outcome,
    Recorder,
    check_engine,
    free_bytes,
    kept,
    outcome,
    policy_config,
    request,
    state_of,
)
from tests.reference.retention import Rules

RULES = Rules("plan_aware", 64, 4, 12, 8, 24, 128)
# the second one only widens the staging area, so that four chunks of the first fit a forward
POLICIES = {
    "test": policy_config(RULES),
    "wide": policy_config(Rules("h2o", 64, 4, 12, 8, 96, 200), "wide"),
}
SAMPLED = Sampling(max_tokens=20, temperature=0.9, logprobs=True, ignore_eos=True)
TEXTS = ["first " * 20, "second " * 15, "third " * 10]
PLAN = PlanUpdate(plan={2: (1,), 4: (2,)})


@pytest.fixture
def recorder(tiny: ModelRunner) -> Iterator[Recorder]:
    recording = Recorder(tiny)
    yield recording
    recording.stop()


@pytest.fixture(autouse=True)
def same_random_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions without a seed of their own all start from the same one."""
    monkeypatch.setattr("engine.store.secrets.randbits", lambda _: 7)


def run(engine: KVEngine, text: str, name: str = "s", **settings: object) -> Outcome:
    sampling = settings.pop("sampling", SAMPLED)
    return outcome(engine.run(request(name, text, sampling=sampling, **settings)))


def assert_next_turn_is_the_same(engine: KVEngine, twin: KVEngine, name: str = "s") -> None:
    """The next turn of both engines' sessions gives the same tokens, numbers and rows."""
    got, wanted = run(engine, "and then?", name), run(twin, "and then?", name)
    assert got.token_ids == wanted.token_ids
    assert got.logprobs == pytest.approx(wanted.logprobs, abs=1e-6)
    assert got.done == wanted.done
    mine, other = state_of(engine, name), state_of(twin, name)
    assert list(mine.tokens) == list(other.tokens)
    assert list(mine.messages) == list(other.messages) and list(mine.steps) == list(other.steps)
    for array in ("logical", "physical"):
        assert kept(mine.row, array) == kept(other.row, array)
    assert (mine.digest, mine.plan, mine.rng) == (other.digest, other.plan, other.rng)


def used_bytes(engine: KVEngine) -> int:
    return engine.store.pool.bytes_allocated - free_bytes(engine.store.pool)


def until_end(queue: SimpleQueue[TurnEvent]) -> list[TurnEvent]:
    """The events of a turn; the last one is its end."""
    events: list[TurnEvent] = []
    while not events or not isinstance(events[-1], TurnDone | TurnFailed):
        events.append(queue.get(timeout=60))
    return events


def end_of(queue: SimpleQueue[TurnEvent]) -> TurnEvent:
    return until_end(queue)[-1]


# forwards of the second turn: 5 chunks, then decode
@pytest.mark.parametrize("at", [0, 1, 3, 6, 15], ids=lambda n: f"forward{n}")
def test_a_cancelled_turn_was_never_there(
    at: int, tiny: ModelRunner, recorder: Recorder, make_engine: MakeEngine
) -> None:
    engine, twin = make_engine(tiny, POLICIES), make_engine(tiny, POLICIES)
    for one in (engine, twin):
        run(one, TEXTS[0], plan=PLAN)
    before, events = used_bytes(engine), SimpleQueue[TurnEvent]()
    forwards = 0

    def cancel_at(_: list[Work]) -> None:
        nonlocal forwards
        if forwards == at:
            turn.cancel()
            turn.cancel()  # idempotent
        forwards += 1

    with engine.scheduler._wake:  # the step thread waits until the hook is in place
        turn = engine.submit(
            request("s", TEXTS[1], sampling=SAMPLED, plan=PlanUpdate(plan={})), events.put
        )
        recorder.before = cancel_at
    failed = end_of(events)
    recorder.before = None
    assert isinstance(failed, TurnFailed) and isinstance(failed.error, TurnCancelled)
    assert forwards == at + 1
    assert used_bytes(engine) == before
    assert engine.stats()["turns_failed_total"] == 1
    assert_next_turn_is_the_same(engine, twin)


def test_a_cancelled_first_turn_leaves_no_session(
    tiny: ModelRunner, recorder: Recorder, make_engine: MakeEngine
) -> None:
    engine, events = make_engine(tiny, POLICIES), SimpleQueue[TurnEvent]()
    with engine.scheduler._wake:
        turn = engine.submit(request("s", TEXTS[0]), events.put)
        recorder.before = lambda _: turn.cancel()
    assert isinstance(end_of(events), TurnFailed)
    recorder.before = None
    assert engine.sessions(None) == [] and len(engine.store.table) == 0
    assert used_bytes(engine) == 0
    with pytest.raises(SessionNotFound):
        engine.session("", "s")


# four chunks fill the staging area; of decoded tokens all go into one forward
@pytest.mark.parametrize(("at", "beside"), [(1, 4), (12, 8)])
def test_a_failing_forward_fails_its_own_turn_alone(
    at: int, beside: int, tiny: ModelRunner, recorder: Recorder, make_engine: MakeEngine
) -> None:
    engine, twin = make_engine(tiny, POLICIES), make_engine(tiny, POLICIES)
    names = list("abcdefgh")
    for one in (engine, twin):
        for name in names:
            run(one, TEXTS[0], name, plan=PLAN)
    memory = used_bytes(engine)
    events: dict[str, SimpleQueue[TurnEvent]] = {name: SimpleQueue() for name in names}
    forwards, packed = 0, 0

    def fail_b(works: list[Work]) -> None:
        nonlocal forwards, packed
        mine = any(work.row is broken for work in works)
        forwards += mine
        if mine and forwards > at:
            packed = max(packed, len(works))
            raise RuntimeError(f"no forward for {TEXTS[1]}")

    with engine.scheduler._wake:
        for name in names:
            turn = engine.submit(request(name, TEXTS[1], sampling=SAMPLED), events[name].put)
            if name == "b":
                broken = turn.state.row
        recorder.before = fail_b
    seen = {name: until_end(events[name]) for name in names}
    recorder.before = None
    assert packed == beside, "the failure was to hit a packed forward"
    failed = seen.pop("b")[-1]
    assert isinstance(failed, TurnFailed) and isinstance(failed.error, EngineFailure)
    assert "second" not in failed.error.message
    check_engine(engine)
    for name, given in seen.items():
        got, wanted = outcome(given), run(twin, TEXTS[1], name)
        assert (got.text, got.token_ids, got.done) == (wanted.text, wanted.token_ids, wanted.done)
        assert got.logprobs == pytest.approx(wanted.logprobs, abs=1e-6)
    # the seven keep the state before the turn too; the eighth has what it had
    row = engine.store.pool.row_bytes(RULES.budget + RULES.interval)
    assert used_bytes(engine) == memory + (len(names) - 1) * row
    for name in names:
        assert_next_turn_is_the_same(engine, twin, name)
    engine.check_health()


def test_an_error_while_keeping_fails_the_turn_and_frees_its_memory(
    tiny: ModelRunner, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, twin = make_engine(tiny, POLICIES), make_engine(tiny, POLICIES)
    for one in (engine, twin):
        run(one, TEXTS[0])
    before = used_bytes(engine)
    with monkeypatch.context() as patch:
        patch.setattr("engine.flow.select_keep", lambda *_: 1 / 0)
        with pytest.raises(EngineFailure, match="ZeroDivisionError"):
            run(engine, TEXTS[1])
    assert used_bytes(engine) == before
    assert_next_turn_is_the_same(engine, twin)


def test_a_callback_that_raises_does_not_hurt_the_turn(
    tiny: ModelRunner, make_engine: MakeEngine
) -> None:
    engine, twin = make_engine(tiny, POLICIES), make_engine(tiny, POLICIES)
    done = SimpleQueue[TurnEvent]()

    def broken(event: TurnEvent) -> None:
        done.put(event)
        raise RuntimeError("the caller's own error")

    engine.submit(request("s", TEXTS[0], sampling=SAMPLED), broken)
    assert isinstance(end_of(done), TurnDone)
    run(twin, TEXTS[0])
    assert_next_turn_is_the_same(engine, twin)


def test_scoring_commits_nothing(tiny: ModelRunner, make_engine: MakeEngine) -> None:
    engine, twin = make_engine(tiny, POLICIES), make_engine(tiny, POLICIES)
    for one in (engine, twin):
        run(one, TEXTS[0], plan=PLAN)
    session = engine.store.table.get("", "s")
    before, seen, memory = session.state.export(), len(engine.events("", "s")), used_bytes(engine)
    ask = ScoreRequest(
        "s", request("s", TEXTS[1] * 3).messages, ("yes", "no " * 60, "y"), plan=PLAN
    )
    first, second = engine.score(ask), engine.score(ask)
    assert first == second
    after = session.state.export()
    arrays_before, arrays_after = before.pop("row"), after.pop("row")
    assert before == after
    assert all((arrays_before[name] == arrays_after[name]).all() for name in arrays_before)
    assert session.turns == 1 and len(engine.events("", "s")) == seen
    assert used_bytes(engine) == memory
    assert_next_turn_is_the_same(engine, twin)


def test_a_failing_score_leaves_the_session_as_it_was(
    tiny: ModelRunner, recorder: Recorder, make_engine: MakeEngine
) -> None:
    engine, twin = make_engine(tiny, POLICIES), make_engine(tiny, POLICIES)
    for one in (engine, twin):
        run(one, TEXTS[0])
    memory, messages = used_bytes(engine), request("s", TEXTS[1]).messages

    def fail(_: list[Work]) -> None:
        raise RuntimeError("no forward")

    recorder.before = fail
    with pytest.raises(EngineFailure):
        engine.score(ScoreRequest("s", messages, ("yes",)))
    recorder.before = None
    with pytest.raises(SessionNotFound):
        engine.score(ScoreRequest("unknown", messages, ("yes",)))
    assert used_bytes(engine) == memory and len(engine.store.table) == 1
    assert_next_turn_is_the_same(engine, twin)


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_a_regenerated_turn_replaces_the_one_before(
    turns: int, tiny: ModelRunner, make_engine: MakeEngine
) -> None:
    """The session equals one that never saw the replaced turn (nor two replaced in a row)."""
    engine, twin = make_engine(tiny, POLICIES), make_engine(tiny, POLICIES)
    seeded = replace(SAMPLED, seed=5)  # without a seed a regenerated answer is another one
    for text in TEXTS[:turns]:
        run(engine, text, sampling=seeded, plan=PLAN if text == TEXTS[0] else PlanUpdate())
    for again in ("something else " * 9, TEXTS[turns - 1]):
        known = 2 * (turns - 1)
        plan = PLAN if turns == 1 else PlanUpdate()
        replaced = run(engine, again, base="previous", known=known, sampling=seeded, plan=plan)
    for text in TEXTS[:turns]:
        plan = PLAN if text == TEXTS[0] else PlanUpdate()
        wanted = run(twin, text, sampling=seeded, plan=plan)
    assert replaced == wanted
    assert_next_turn_is_the_same(engine, twin)


def test_a_regenerated_answer_is_another_one(
    tiny: ModelRunner, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = itertools.count(1)
    monkeypatch.setattr("engine.store.secrets.randbits", lambda _: next(numbers))
    engine = make_engine(tiny, POLICIES)
    run(engine, TEXTS[0])
    answers = [run(engine, TEXTS[1])]
    answers += [run(engine, TEXTS[1], base="previous", known=2) for _ in range(2)]
    assert len({answer.token_ids for answer in answers}) == 3


def test_without_the_previous_turn_kept_a_session_holds_one_row(
    tiny: ModelRunner, make_engine: MakeEngine
) -> None:
    engine = make_engine(tiny, POLICIES, keep_previous_turn=False)
    twin = make_engine(tiny, POLICIES)
    for text in TEXTS:
        assert run(engine, text) == run(twin, text)
        row = engine.store.pool.row_bytes(RULES.budget + RULES.interval)
        assert used_bytes(engine) == row
    assert used_bytes(twin) == 2 * row
    assert engine.store.table.get("", "s").previous is None
    with pytest.raises(SessionDiverged, match="keeps no state"):
        run(engine, "again", base="previous", known=4)
    assert_next_turn_is_the_same(engine, twin)


def test_memory_does_not_grow_with_turns_cancels_scores_and_regenerations(
    tiny: ModelRunner, recorder: Recorder, make_engine: MakeEngine
) -> None:
    engine = make_engine(tiny, POLICIES)
    allocated = []
    for _ in range(4):
        run(engine, TEXTS[0])
        run(engine, TEXTS[1], base="previous")
        engine.score(ScoreRequest("s", request("s", "?").messages, ("yes",)))
        with pytest.raises(TurnCancelled):
            recorder.before = lambda _: engine.scheduler.cancel(
                engine.store.table.get("", "s").task
            )
            run(engine, TEXTS[2])
        recorder.before = None
        allocated.append(engine.store.pool.bytes_allocated)
    assert len(set(allocated[1:])) == 1
    engine.delete("", "s")
    assert used_bytes(engine) == 0
