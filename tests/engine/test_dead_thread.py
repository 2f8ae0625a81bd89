"""A dead step thread hangs nobody: running turns fail and are rolled back, callers are told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import pytest

from engine.engine import KVEngine
from engine.errors import EngineFailure, SessionBusy
from engine.flow import Flow
from engine.runner import ModelRunner, Work
from engine.scheduler import Scheduler, Task
from engine.types import (
    Sampling,
    ScoreRequest,
    TextDelta,
    TurnDone,
    TurnEvent,
    TurnFailed,
)
from tests.engine.conftest import MakeEngine
from tests.engine.counting import STAGING, CountingRunner, Job, finish, start
from tests.engine.support import Recorder, free_bytes, policy_config, request, state_of
from tests.reference.retention import Rules

POLICIES = {"test": policy_config(Rules("plan_aware", 64, 4, 12, 8, 24, 128))}
UNENDING = Sampling(max_tokens=10**6, temperature=0.0, ignore_eos=True)


class Killer(BaseException):
    """Nothing on the way handles it."""


@pytest.fixture
def recorder(tiny: ModelRunner) -> Iterator[Recorder]:
    recording = Recorder(tiny)
    yield recording
    recording.stop()


def breaks_the_rules() -> Flow[None]:
    yield from Job(1, [1]).flow()
    raise RuntimeError("flows handle their own errors; this one does not")


def test_a_dead_step_thread_fails_the_health_check(scheduler: Scheduler) -> None:
    scheduler.add(Task(breaks_the_rules()))
    scheduler._thread.join(30)
    with pytest.raises(EngineFailure, match="died"):
        scheduler.check_health()
    with pytest.raises(EngineFailure, match="died"):
        scheduler.add(Task(Job(2, [1]).flow()))


class KillsAtOnce:
    """A flow that kills the thread when it begins."""

    def __next__(self) -> Work:
        raise Killer

    def throw(self, error: Exception) -> Work:
        raise error


@pytest.mark.parametrize("killer", ["a forward", "a flow", "a flow that begins"])
def test_a_dying_step_thread_ends_every_flow(
    killer: str, scheduler: Scheduler, runner: CountingRunner
) -> None:
    """Also those that wait for room, that were never begun, or come while the thread dies."""
    jobs = [Job(1, [1] * 1000), Job(2, [STAGING] * 1000), Job(3, [STAGING] * 1000)]
    fresh = [Job(4, [1] * 1000), Job(5, [1] * 1000)]
    late = Job(6, [1])

    def kill_at_10(works: list[Work]) -> None:
        if len(runner.batches) == 10:
            if killer == "a flow that begins":
                scheduler.add(Task(KillsAtOnce()))  # type: ignore[arg-type]
            if killer == "a flow":
                scheduler.add(Task(breaks_the_rules()))
            for job in fresh:
                scheduler.add(Task(job.flow()))
            if killer == "a forward":
                raise Killer

    def comes_late() -> Flow[None]:
        try:
            yield from Job(7, [1] * 1000).flow()
        finally:
            try:
                scheduler.add(Task(late.flow()))
            except EngineFailure as error:
                late.error = error

    runner.before = kill_at_10
    with scheduler._wake:
        start(scheduler, jobs)
        scheduler.add(Task(comes_late()))
    scheduler._thread.join(30)
    finish([*jobs, *fresh])
    for job in (*jobs, *fresh, late):
        assert isinstance(job.error, EngineFailure) and "died" in job.error.message
    with pytest.raises(EngineFailure, match="died"):
        scheduler.check_health()
    scheduler.close()
    with pytest.raises(EngineFailure, match="died"):
        scheduler.check_health()


def used_bytes(engine: KVEngine) -> int:
    return engine.store.pool.bytes_allocated - free_bytes(engine.store.pool)


def caught(call: Callable[[], object], into: SimpleQueue[BaseException]) -> threading.Thread:
    """Run ``call`` in a thread; what it raises goes ``into``."""

    def run() -> None:
        try:
            call()
        except BaseException as error:
            into.put(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize("place", ["forward", "keep"])
def test_every_running_turn_fails_and_nobody_waits(
    place: str,
    tiny: ModelRunner,
    recorder: Recorder,
    make_engine: MakeEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make_engine(tiny, POLICIES)
    names = [f"s{n}" for n in range(8)]
    for name in names:
        engine.run(request(name, "first " * 20))
    before = {name: state_of(engine, name) for name in names}
    memory = used_bytes(engine)
    events = {name: SimpleQueue[TurnEvent]() for name in names[:6]}
    for name, queue in events.items():
        engine.submit(request(name, "second " * 15, sampling=UNENDING), queue.put)
    raised = SimpleQueue[BaseException]()
    callers = [
        caught(lambda: engine.run(request("s6", "second", sampling=UNENDING)), raised),
        caught(
            lambda: engine.score(ScoreRequest("s7", request("s7", "?").messages, ("yes " * 4000,))),
            raised,
        ),
    ]
    for queue in events.values():
        while not isinstance(queue.get(timeout=60), TextDelta):
            pass
    while engine.stats()["sessions_running"] < 8:
        time.sleep(0.005)

    def kill(*_: object) -> None:
        raise Killer

    if place == "forward":
        recorder.before = kill
    else:  # inside a flow
        monkeypatch.setattr("engine.flow.select_keep", kill)
    begun = time.monotonic()
    for queue in events.values():
        while not isinstance(event := queue.get(timeout=60), TurnDone | TurnFailed):
            pass
        assert isinstance(event, TurnFailed) and isinstance(event.error, EngineFailure)
        assert queue.empty()
    for thread in callers:
        thread.join(60)
        assert not thread.is_alive(), "a caller waits for a dead thread"
    assert time.monotonic() - begun < 3
    assert [type(raised.get_nowait()) for _ in callers] == [EngineFailure] * 2
    with pytest.raises(EngineFailure, match="died"):
        engine.check_health()
    with pytest.raises(EngineFailure, match="died"):
        engine.run(request("s0", "third"))
    with pytest.raises(EngineFailure, match="died"):
        engine.run(request("new", "first"))
    # what was committed can still be read, and nothing else is left
    assert {name: state_of(engine, name) for name in names} == before
    assert len(engine.sessions(None)) == len(engine.store.table) == 8
    assert used_bytes(engine) == memory
    assert engine.stats()["sessions_running"] == 0
    assert engine.stats()["turns_failed_total"] == 7


def test_rows_of_a_score_nobody_waits_for_are_not_given_away(
    tiny: ModelRunner,
    recorder: Recorder,
    make_engine: MakeEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread is stuck in a forward, and may still write to them when it comes back."""
    engine = make_engine(tiny, POLICIES, stuck_after_s=0.2)
    monkeypatch.setattr("engine.scheduler._WAIT_S", 0.05)
    engine.run(request("s", "first " * 20))
    before, memory = state_of(engine, "s"), used_bytes(engine)
    stuck, go_on = threading.Event(), threading.Event()

    def hang(works: list[Work]) -> None:
        stuck.set()
        go_on.wait(30)

    recorder.before = hang
    try:
        with pytest.raises(EngineFailure, match="stuck"):
            engine.score(ScoreRequest("s", request("s", "?").messages, ("yes",)))
        assert stuck.is_set()
        held = used_bytes(engine)
        with pytest.raises(SessionBusy):
            engine.submit(request("s", "second"), lambda event: None)
    finally:
        recorder.before = None
        go_on.set()
    policy = before.policy.capacity
    pool = engine.store.pool
    assert held == memory + 2 * (pool.row_bytes(policy) + pool.buffer_bytes(policy))
    until = time.monotonic() + 30
    while engine.stats()["sessions_running"]:
        assert time.monotonic() < until
        time.sleep(0.005)
    assert used_bytes(engine) == memory
    assert state_of(engine, "s") is before
    engine.run(request("s", "second"))


def test_a_callback_cannot_kill_the_step_thread(tiny: ModelRunner, make_engine: MakeEngine) -> None:
    engine, done = make_engine(tiny, POLICIES), SimpleQueue[TurnEvent]()

    def exits(event: TurnEvent) -> None:
        done.put(event)
        raise SystemExit

    engine.submit(request("s", "first"), exits)
    while not isinstance(event := done.get(timeout=60), TurnDone | TurnFailed):
        pass
    assert isinstance(event, TurnDone)
    engine.check_health()
    engine.run(request("s", "second"))
