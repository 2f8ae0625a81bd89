"""Finding, holding and forgetting sessions; what a request may continue."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue

import pytest

from engine.engine import KVEngine
from engine.errors import (
    CapacityExceeded,
    ConfigError,
    InvalidRequest,
    PolicyMismatch,
    SessionBusy,
    SessionDiverged,
    SessionNotFound,
    TurnCancelled,
)
from engine.pool import memory_limit
from engine.runner import ModelRunner
from engine.transcript import EMPTY_DIGEST, transcript_digests
from engine.types import Base, Match, Message, Sampling, ScoreRequest, TurnEvent, TurnFailed
from tests.engine.conftest import MakeEngine
from tests.engine.support import outcome, policy_config, request, state_of
from tests.reference.retention import Rules

RULES = Rules("h2o", 32, 2, 4, 4, 64, 100)
POLICIES = {
    "test": policy_config(RULES),
    "other": policy_config(Rules("none", 200, 0, 0, 1, 64), "other"),
}
LONG = Sampling(max_tokens=100_000, temperature=0.0, ignore_eos=True)


@pytest.fixture
def engine(tiny: ModelRunner, make_engine: MakeEngine) -> KVEngine:
    return make_engine(tiny, POLICIES)


def talk(engine: KVEngine, name: str, *texts: str, namespace: str = "") -> list[Message]:
    """Turns of a session; returns its transcript as a client holds it."""
    transcript = []
    for text in texts:
        got = outcome(engine.run(request(name, text, namespace=namespace)))
        transcript += [Message("user", text), Message("assistant", got.text)]
    return transcript


def matched(
    engine: KVEngine, name: str | None, transcript: Sequence[Message], namespace: str = ""
) -> Match:
    return engine.match(namespace, name, transcript_digests(transcript))


NEXT = Message("user", "next")


def test_a_resent_transcript_is_matched_to_what_the_session_holds(engine: KVEngine) -> None:
    transcript = talk(engine, "s", "one", "two")
    for name in ("s", None):  # by its id, or by the transcript alone
        assert matched(engine, name, [*transcript, NEXT]) == Match("s", "current", 4)
        edited = [*transcript[:2], Message("user", "two, edited")]
        assert matched(engine, name, edited) == Match("s", "previous", 2)
        assert matched(engine, name, transcript[:3]) == Match("s", "previous", 2)
    with pytest.raises(SessionDiverged, match="message 0 differs") as caught:
        matched(engine, "s", [Message("user", "other"), *transcript[1:], NEXT])
    assert caught.value.param == "messages.0"
    with pytest.raises(SessionDiverged, match="ends after 1 messages"):
        matched(engine, "s", transcript[:1])
    assert engine.match("", "s", [EMPTY_DIGEST, b"?" * 16], append=True) == Match("s", "current", 4)
    assert engine.match("", "t", [EMPTY_DIGEST, b"?" * 16], append=True) == Match("t", "new", 0)


def test_what_is_appended_to_no_session_begins_one(engine: KVEngine) -> None:
    transcript = talk(engine, "s", "one")
    digests = transcript_digests([*transcript, NEXT])
    match = engine.match("", None, digests, append=True)
    assert (match.base, match.known) == ("new", 0) and match.session_id != "s"


@pytest.mark.parametrize("change", ["redone", "begun again"])
@pytest.mark.parametrize("base", ["current", "previous"])
def test_other_messages_of_the_same_number_are_not_continued(
    change: str, base: Base, engine: KVEngine
) -> None:
    """A request waits between being matched and being taken, and meanwhile another client's
    turn puts other messages in the place of those it was matched to."""
    transcript = talk(engine, "s", "one", "two")
    end = [*transcript, NEXT] if base == "current" else [*transcript[:2], NEXT]
    match = matched(engine, "s", end)
    assert match.base == base
    if change == "redone":
        engine.run(request("s", "two, edited", base="previous", known=2))
    else:
        engine.delete("", "s")
        talk(engine, "s", "uno", "due")
    held = transcript_digests(end)[match.known]
    late = request("s", "next", base=match.base, known=match.known, digest=held)
    if (change, base) == ("redone", "previous"):
        engine.run(late)  # the state before the turn is as it was
        return
    before = state_of(engine, "s")
    with pytest.raises(SessionDiverged, match="other messages") as caught:
        engine.run(late)
    assert "send the request again" in caught.value.message
    assert state_of(engine, "s") is before


def test_a_transcript_finds_only_idle_sessions_of_its_own_namespace(engine: KVEngine) -> None:
    transcript = talk(engine, "s", "one", namespace="alice")
    fresh = matched(engine, None, [*transcript, NEXT], namespace="bob")
    assert (fresh.base, fresh.known) == ("new", 0) and fresh.session_id != "s"
    assert matched(engine, "s", [*transcript, NEXT], namespace="bob") == Match("s", "new", 0)
    found = matched(engine, None, [*transcript, NEXT], namespace="alice")
    assert found == Match("s", "current", 2)
    turn = engine.submit(request("s", "two", namespace="alice", sampling=LONG), lambda _: None)
    assert matched(engine, None, [*transcript, NEXT], namespace="alice").base == "new"
    turn.cancel()
    with pytest.raises(SessionNotFound):
        engine.session("bob", "s")


@pytest.mark.parametrize("case", ["previous", "known", "policy", "messages"])
def test_a_refused_first_turn_leaves_no_session_behind(case: str, engine: KVEngine) -> None:
    error, wrong = {
        "previous": (SessionDiverged, request("n", "x", base="previous")),
        "known": (SessionDiverged, request("n", "x", known=4)),
        "policy": (InvalidRequest, request("n", "x", policy="best")),
        "messages": (InvalidRequest, request("n")),
    }[case]
    with pytest.raises(error):
        engine.run(wrong)
    assert len(engine.store.table) == 0
    engine.run(request("n", "x", policy="other"))  # a ghost would hold the default policy
    assert engine.session("", "n")["policy"] == "other"


def test_what_a_session_holds_must_be_what_the_request_continues(engine: KVEngine) -> None:
    talk(engine, "s", "one", "two")
    before = state_of(engine, "s")
    for wrong, error, text in [
        (request("s", "x", known=2), SessionDiverged, "holds 4 messages, not 2"),
        (request("s", "x", base="previous", known=4), SessionDiverged, "holds 2 messages, not 4"),
        (request("s", "x", base="new"), SessionDiverged, "holds 4 messages, not 0"),
        (request("s", "x", policy="other"), PolicyMismatch, "created with policy 'test'"),
        (request("s"), InvalidRequest, "no new message"),
    ]:
        with pytest.raises(error, match=text):
            engine.run(wrong)
        assert state_of(engine, "s") is before
    engine.run(request("s", "x", known=4, policy="test"))


def test_a_session_runs_one_turn_at_a_time(engine: KVEngine) -> None:
    talk(engine, "s", "one")
    turn = engine.submit(request("s", "two", sampling=LONG), lambda _: None)
    with pytest.raises(SessionBusy):
        engine.run(request("s", "three"))
    with pytest.raises(SessionBusy):
        engine.score(ScoreRequest("s", request("s", "x").messages, ("y",)))
    assert engine.session("", "s")["status"] == "running"
    assert engine.session("", "s")["turns"] == 1  # readers see what is committed
    turn.cancel()


def wait_for(event: type, queue: SimpleQueue[TurnEvent]) -> TurnEvent:
    while True:
        got = queue.get(timeout=60)
        if isinstance(got, event):
            return got


def test_deleting_a_running_session_cancels_its_turn(engine: KVEngine) -> None:
    talk(engine, "s", "one")
    events: SimpleQueue[TurnEvent] = SimpleQueue()
    engine.submit(request("s", "two", sampling=LONG), events.put)
    engine.delete("", "s")
    assert isinstance(wait_for(TurnFailed, events).error, TurnCancelled)
    assert engine.sessions(None) == [] and len(engine.store.table) == 0


def test_deleting_a_session_in_its_first_turn_cancels_it(engine: KVEngine) -> None:
    events: SimpleQueue[TurnEvent] = SimpleQueue()
    engine.submit(request("s", "one", sampling=LONG), events.put)
    with pytest.raises(SessionNotFound):
        engine.session("", "s")  # readers see what is committed: nothing yet
    engine.delete("", "s")
    assert isinstance(wait_for(TurnFailed, events).error, TurnCancelled)
    assert len(engine.store.table) == 0
    with pytest.raises(SessionNotFound):
        engine.delete("", "s")


def test_deleting_a_session_while_its_turn_is_admitted_cancels_it_too(
    engine: KVEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk(engine, "s", "one")
    take_row = engine.store.active_row

    def delete_meanwhile(*args: object) -> object:
        engine.delete("", "s")
        return take_row(*args)

    monkeypatch.setattr(engine.store, "active_row", delete_meanwhile)
    with pytest.raises(TurnCancelled):
        engine.run(request("s", "two", sampling=LONG))
    assert len(engine.store.table) == 0


def test_the_session_longest_unused_makes_room(tiny: ModelRunner, make_engine: MakeEngine) -> None:
    engine = make_engine(tiny, POLICIES, max_sessions=3)
    for name in ("a", "b", "c", "a"):
        talk(engine, name, "hello")
        time.sleep(0.002)
    talk(engine, "d", "hello")
    assert {item["session_id"] for item in engine.sessions(None)} == {"a", "c", "d"}
    assert engine.stats()["sessions_dropped_total"] == 1
    # new messages alone would be answered without what they follow on
    new = transcript_digests([NEXT])
    with pytest.raises(SessionNotFound, match="whole transcript"):
        engine.match("", "b", new, append=True)
    assert engine.match("", "never", new, append=True).base == "new"
    assert engine.match("other", "b", new, append=True).base == "new"
    talk(engine, "b", "hello again")  # the whole transcript begins it again
    assert engine.match("", "b", new, append=True).base == "current"
    engine.delete("", "b")  # as its owner wanted
    assert engine.match("", "b", new, append=True).base == "new"


def test_memory_is_taken_from_idle_sessions_never_from_running_ones(
    tiny: ModelRunner, make_engine: MakeEngine
) -> None:
    one = make_engine(tiny, POLICIES).store.pool
    row, buffer = one.row_bytes(36), one.buffer_bytes(36)
    engine = make_engine(tiny, POLICIES, pool_bytes=4 * row + 2 * buffer)
    for name in ("a", "b", "c", "d"):
        talk(engine, name, "hello")
    assert engine.stats()["pool_bytes"] <= 4 * row + 2 * buffer
    assert "d" in {item["session_id"] for item in engine.sessions(None)}
    # three running turns take three rows and three buffers: no room for a fourth
    turns = [engine.submit(request(n, "x", sampling=LONG), lambda _: None) for n in "efg"]
    with pytest.raises(CapacityExceeded) as caught:
        engine.run(request("h", "x"))
    assert caught.value.retry_after >= 1
    assert {session.session_id for session in engine.store.table} == {"e", "f", "g"}
    for turn in turns:
        turn.cancel()


def test_memory_freed_by_one_policy_serves_another(
    tiny: ModelRunner, make_engine: MakeEngine
) -> None:
    pool = make_engine(tiny, POLICIES).store.pool
    limit = pool.session_bytes(200, False)
    engine = make_engine(tiny, POLICIES, pool_bytes=limit, keep_previous_turn=False)
    for policy in ("test", "other", "test", "other"):
        name = f"{policy} {time.monotonic_ns()}"
        engine.run(request(name, "hello", policy=policy))
        assert engine.stats()["pool_bytes"] <= limit


def test_a_pool_too_small_for_one_session_is_a_config_error(
    tiny: ModelRunner, make_engine: MakeEngine
) -> None:
    with pytest.raises(ConfigError, match="pool_bytes 1000 must be at least") as caught:
        make_engine(tiny, POLICIES, pool_bytes=1000)
    assert caught.value.param == "pool_bytes"


def test_a_policy_too_large_for_the_pool_costs_no_session_its_memory(
    tiny: ModelRunner, make_engine: MakeEngine
) -> None:
    pool = make_engine(tiny, POLICIES).store.pool
    engine = make_engine(tiny, POLICIES, pool_bytes=pool.session_bytes(200, True) - 1)
    talk(engine, "a", "hello")
    with pytest.raises(InvalidRequest, match="'other' needs") as caught:
        engine.run(request("b", "hello", policy="other"))
    assert caught.value.param == "pace.policy"
    assert {session.session_id for session in engine.store.table} == {"a"}


def test_no_idle_session_is_dropped_when_that_would_not_make_enough_room(
    tiny: ModelRunner, make_engine: MakeEngine
) -> None:
    pool = make_engine(tiny, POLICIES).store.pool
    small = pool.row_bytes(36) + pool.buffer_bytes(36)
    limit = pool.session_bytes(200, True) + small
    engine = make_engine(tiny, POLICIES, pool_bytes=limit)
    talk(engine, "idle", "hello")
    needed, turns = pool.row_bytes(200) + pool.buffer_bytes(200), []
    with engine.scheduler._wake:  # the step thread waits, so that no turn ends meanwhile
        while engine.store.pool.room >= needed:
            other = request(f"running {len(turns)}", "x", policy="other")
            turns.append(engine.submit(other, lambda _: None))
        with pytest.raises(CapacityExceeded):
            engine.submit(request("late", "x", policy="other"), lambda _: None)
        assert turns and "idle" in {session.session_id for session in engine.store.table}
        for turn in turns:
            turn.cancel()


def test_the_memory_reported_is_the_memory_held(tiny: ModelRunner, make_engine: MakeEngine) -> None:
    engine = make_engine(tiny, POLICIES)
    pool = engine.store.pool

    def held() -> int:
        return pool.byte_limit - pool.room

    for _ in range(3):
        talk(engine, "s", "hello")
        assert engine.session("", "s")["kv_bytes"] == held() > 0
    with engine.scheduler._wake:
        turn = engine.submit(request("s", "x"), lambda _: None)
        assert engine.session("", "s")["kv_bytes"] == held()
        turn.cancel()


def test_the_default_pool_respects_a_containers_limit(tmp_path: Path) -> None:
    machine = memory_limit(tmp_path)
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_limit(tmp_path) == machine
    (tmp_path / "memory.max").write_text("4096000\n")
    assert memory_limit(tmp_path) == 4096000
