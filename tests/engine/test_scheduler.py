"""The step thread, on a runner that only counts: what it packs, that nobody starves, its end."""

from __future__ import annotations

import random
import threading
import time
from queue import SimpleQueue

import pytest

from engine.engine import KVEngine
from engine.errors import EngineFailure, TurnCancelled
from engine.flow import Flow
from engine.runner import ModelRunner, Work
from engine.scheduler import Scheduler, Task
from engine.types import Sampling, TextDelta, TurnEvent, TurnFailed
from tests.engine.conftest import MakeEngine
from tests.engine.counting import STAGING, CountingRunner, Job, finish, start
from tests.engine.support import policy_config, request, state_of
from tests.reference.retention import Rules


def test_chunks_are_packed_within_staging_and_never_resized(
    scheduler: Scheduler, runner: CountingRunner
) -> None:
    draw = random.Random(1)
    jobs = [
        Job(
            name,
            [draw.choice((1, 1, 1, 5, 31, 32, 33, 63, 64)) for _ in range(draw.randint(1, 40))],
        )
        for name in range(1, 13)
    ]
    start(scheduler, jobs)
    finish(jobs)
    for works in runner.batches:
        assert sum(len(work.tokens) for work in works if not work.decode) <= STAGING
        assert len({work.tokens[0] for work in works}) == len(works), "one chunk per session"
    for job in jobs:
        assert [size for _, size in runner.sizes(job.name)] == job.sizes and job.error is None
    assert max(len(works) for works in runner.batches) > 3, "nothing was packed"
    assert scheduler.steps == len(runner.batches)
    assert scheduler.tokens == sum(sum(job.sizes) for job in jobs)


def test_a_long_prefill_and_decodes_do_not_starve_each_other(
    scheduler: Scheduler, runner: CountingRunner
) -> None:
    decodes = [Job(name, [1] * 50) for name in (1, 2, 3)]
    prefill = Job(9, [STAGING] * 50)
    start(scheduler, [prefill, *decodes])
    finish([prefill, *decodes])
    # everybody is in every forward: 50 forwards in all
    assert len(runner.batches) == 50
    assert all(len(works) == 4 for works in runner.batches)


@pytest.mark.parametrize("chunks", [(64, 64, 64), (64, 32, 32), (64, 1, 5, 33), (33, 33, 33, 31)])
def test_prefills_take_turns(
    chunks: tuple[int, ...], scheduler: Scheduler, runner: CountingRunner
) -> None:
    """However chunks fit together, nobody waits longer than the others need for one each."""
    jobs = [Job(name, [chunk] * 30) for name, chunk in enumerate(chunks, start=1)]
    start(scheduler, jobs)
    finish(jobs)
    for job in jobs:
        forwards = [number for number, _ in runner.sizes(job.name)]
        waits = [b - a for a, b in zip([-1, *forwards], forwards, strict=False)]
        assert max(waits) <= len(jobs)


def test_a_latecomer_starts_at_once(scheduler: Scheduler, runner: CountingRunner) -> None:
    early, late = Job(1, [1] * 200), Job(2, [1] * 3)
    entered = threading.Event()

    def wait_for_the_other(works: list[Work]) -> None:
        if len(runner.batches) == 20:
            scheduler.add(Task(late.flow()))
            entered.set()

    runner.before = wait_for_the_other
    start(scheduler, [early])
    finish([early, late])
    assert entered.is_set()
    assert [number for number, _ in runner.sizes(2)] == [21, 22, 23]


def test_a_failing_forward_is_repeated_alone_and_fails_its_cause(
    scheduler: Scheduler, runner: CountingRunner
) -> None:
    jobs = [Job(name, [1] * 5) for name in (1, 2, 3)]

    def fail_second(works: list[Work]) -> None:
        if len(runner.batches) >= 2 and any(work.tokens[0] == 2 for work in works):
            raise RuntimeError("broken")

    runner.before = fail_second
    start(scheduler, jobs)
    finish(jobs)
    assert isinstance(jobs[1].error, EngineFailure) and len(runner.sizes(2)) == 2
    for job in (jobs[0], jobs[2]):
        assert job.error is None and len(runner.sizes(job.name)) == 5
    scheduler.check_health()


def test_cancel_reaches_a_flow_before_its_next_forward_and_only_it(
    scheduler: Scheduler, runner: CountingRunner
) -> None:
    jobs = [Job(1, [1] * 100), Job(2, [1] * 100)]

    def cancel_first(works: list[Work]) -> None:
        if len(runner.batches) == 7:
            scheduler.cancel(tasks[0])

    runner.before = cancel_first
    with scheduler._wake:
        tasks = start(scheduler, jobs)
    finish(jobs)
    assert isinstance(jobs[0].error, TurnCancelled) and len(runner.sizes(1)) == 8
    assert jobs[1].error is None and len(runner.sizes(2)) == 100
    scheduler.cancel(tasks[1])  # too late: nothing happens
    scheduler.check_health()


def test_close_cancels_what_runs_and_what_waits_and_takes_no_more(
    scheduler: Scheduler, runner: CountingRunner
) -> None:
    jobs = [Job(1, [1] * 10**6), Job(2, [STAGING] * 10**6), Job(3, [STAGING] * 10**6)]
    started = threading.Event()
    runner.before = lambda works: started.set() if len(runner.batches) == 10 else None
    start(scheduler, jobs)
    assert started.wait(30)
    scheduler.close()
    finish(jobs)
    assert all(isinstance(job.error, TurnCancelled) for job in jobs)
    assert not scheduler._thread.is_alive()
    with pytest.raises(EngineFailure, match="shut down"):
        scheduler.add(Task(Job(4, [1]).flow()))
    scheduler.close()  # idempotent
    scheduler.check_health()  # closed on purpose is not ill


def test_an_idle_scheduler_runs_no_forward(scheduler: Scheduler, runner: CountingRunner) -> None:
    job = Job(1, [1])
    start(scheduler, [job])
    finish([job])
    time.sleep(0.05)
    assert len(runner.batches) == 1
    scheduler.check_health()


def test_a_stuck_step_fails_the_health_check_until_it_ends(
    scheduler: Scheduler, runner: CountingRunner
) -> None:
    scheduler._stuck_after_s = 0.05
    entered, release, job = threading.Event(), threading.Event(), Job(1, [1, 1])

    def hang(works: list[Work]) -> None:
        entered.set()
        release.wait(30)

    runner.before = hang
    scheduler.check_health()
    start(scheduler, [job])
    assert entered.wait(30)
    time.sleep(0.1)
    with pytest.raises(EngineFailure, match="stuck for over"):
        scheduler.check_health()
    release.set()
    finish([job])
    scheduler.check_health()


def test_a_flow_stuck_at_its_beginning_fails_the_health_check(scheduler: Scheduler) -> None:
    scheduler._stuck_after_s = 0.05
    entered, release = threading.Event(), threading.Event()

    def hangs() -> Flow[None]:
        entered.set()
        release.wait(30)
        yield from Job(1, [1]).flow()

    scheduler.add(Task(hangs()))
    assert entered.wait(30)
    time.sleep(0.1)
    with pytest.raises(EngineFailure, match="stuck for over"):
        scheduler.check_health()
    release.set()


def test_closing_an_engine_rolls_running_turns_back(
    tiny: ModelRunner, make_engine: MakeEngine
) -> None:
    engine: KVEngine = make_engine(tiny, {"test": policy_config(Rules("h2o", 40, 4, 8, 8, 16, 64))})
    engine.run(request("s", "one"))
    before, events = state_of(engine, "s"), SimpleQueue[TurnEvent]()
    endless = Sampling(max_tokens=10**6, temperature=0.0, ignore_eos=True)
    engine.submit(request("s", "two", sampling=endless), events.put)
    engine.submit(request("new", "one", sampling=endless), events.put)
    while not isinstance(events.get(timeout=30), TextDelta):
        pass
    engine.close()
    rest = [events.get_nowait() for _ in range(events.qsize())]
    failed = [event.error for event in rest if isinstance(event, TurnFailed)]
    assert [type(error) for error in failed] == [TurnCancelled] * 2
    assert state_of(engine, "s") is before
    assert [item["session_id"] for item in engine.sessions(None)] == ["s"]
    with pytest.raises(EngineFailure):
        engine.run(request("s", "three"))
    assert state_of(engine, "s") is before
    engine.close()
