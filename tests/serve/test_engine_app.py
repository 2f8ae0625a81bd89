"""The engine replica's doors: cancelling, waking the loop, errors as values, start-up errors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.errors import CapacityExceeded, ConfigError, EngineFailure
from engine.protocol import Engine
from engine.types import ChunkDone, Message, TurnDone, TurnFailed, TurnRequest
from serve.calls import Admitted, EventBridge, Inbox
from serve.config import ServeConfig
from serve.engine_app import READING_METHODS, EngineReplica
from serve.start_errors import find_start_error
from tests.support.fake_engine import FakeEngine, FakeTurn


def replica(engine: FakeEngine) -> EngineReplica:
    def factory(config: EngineConfig) -> Engine:
        return engine

    return EngineReplica(ServeConfig(), "r", factory)


def request(text: str) -> TurnRequest:
    return TurnRequest("s", (Message("user", text),))


def run(task: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(task(), 20))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_a_turn_is_admitted_then_answered(engine: FakeEngine) -> None:
    async def task() -> None:
        items = [item async for item in replica(engine).turn(request("Hello"))]
        assert items[0] == Admitted("s", "r")
        events = [event for batch in items[1:] for event in batch]  # type: ignore[union-attr]
        assert events[0] == ChunkDone(5, 5)
        assert "".join(event.text for event in events[1:-1]) == "Hello"
        assert isinstance(events[-1], TurnDone)

    run(task)


def test_readers_do_not_stand_before_a_turn(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many read, one thread does, and turns are admitted beside it."""
    let_go, reading = threading.Event(), set[int]()

    def slow(*_: object) -> list[object]:
        reading.add(threading.get_ident())
        assert let_go.wait(10)
        return []

    for method in READING_METHODS:
        monkeypatch.setattr(engine, method, slow)

    async def task() -> None:
        served = replica(engine)
        reads = [
            asyncio.ensure_future(served.call(method)) for method in READING_METHODS for _ in "1234"
        ]
        try:
            await until(lambda: bool(reading))
            items = [item async for item in served.turn(request("Hello"))]
            assert isinstance(items[0], Admitted) and not any(read.done() for read in reads)
        finally:
            let_go.set()
        assert [outcome.error for outcome in await asyncio.gather(*reads)] == [None] * len(reads)
        assert len(reading) == 1

    run(task)


def test_leaving_a_stream_cancels_the_turn(engine: FakeEngine) -> None:
    async def task() -> None:
        async with aclosing(replica(engine).turn(request("hang"))) as items:
            assert isinstance(await anext(items), Admitted)
            turn = engine.known[("", "s")].running
            assert turn is not None and not turn.cancelled.is_set()
        assert turn.cancelled.is_set()
        await until(lambda: engine.known[("", "s")].running is None)

    run(task)


def test_a_finished_turn_is_not_cancelled(engine: FakeEngine) -> None:
    async def task() -> None:
        turns: list[FakeTurn] = []
        submit = engine.submit

        def spy(*args: Any) -> FakeTurn:
            turns.append(submit(*args))
            return turns[-1]

        engine.submit = spy  # type: ignore[method-assign]
        async for _ in replica(engine).turn(request("Hello")):
            pass
        assert not turns[0].cancelled.is_set()

    run(task)


def test_a_client_gone_during_admission_leaves_no_turn(engine: FakeEngine) -> None:
    async def task() -> None:
        engine.submit_delay_s = 0.3
        items = replica(engine).turn(request("hang"))
        waiting = asyncio.ensure_future(anext(items))
        await asyncio.sleep(0.1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until(lambda: ("", "s") in engine.known)
        await until(lambda: engine.known[("", "s")].running is None)

    run(task)


def test_refusals_and_bugs_come_as_values(engine: FakeEngine) -> None:
    async def task() -> None:
        door = replica(engine)
        for text, kind in (("refuse", CapacityExceeded), ("explode SECRET", EngineFailure)):
            (only,) = [item async for item in door.turn(request(text))]
            assert isinstance(only, tuple) and isinstance(only[0], TurnFailed)
            assert isinstance(only[0].error, kind)
            assert "SECRET" not in str(only[0].error)
        outcome = await door.call("session", "", "nothing")
        with pytest.raises(Exception, match="there is no session"):
            outcome.unwrap()
        with pytest.raises(ValueError, match="close"):
            await door.call("close")

    run(task)


def test_health_and_close(engine: FakeEngine) -> None:
    async def task() -> None:
        door = replica(engine)
        await door.check_health()
        engine.healthy = False
        with pytest.raises(EngineFailure):
            await door.check_health()
        assert (await door.health()).error is not None
        await door.close()
        assert engine.closed

    run(task)


def test_many_events_wake_the_loop_once() -> None:
    async def task() -> None:
        loop = asyncio.get_running_loop()
        wakes = 0
        schedule = loop.call_soon_threadsafe

        def count(*args: Any, **kwargs: Any) -> Any:
            nonlocal wakes
            wakes += 1
            return schedule(*args, **kwargs)

        bridge = EventBridge(loop)
        inboxes = [Inbox() for _ in range(8)]
        senders = [bridge.sender(inbox) for inbox in inboxes]
        loop.call_soon_threadsafe = count  # type: ignore[method-assign]

        def step() -> None:
            for number in range(3):
                for send in senders:
                    send(ChunkDone(number, 3))

        thread = threading.Thread(target=step)
        thread.start()
        # The loop is busy here, as it is while a step's events arrive.
        thread.join()
        for inbox in inboxes:
            assert await inbox.take() == tuple(ChunkDone(number, 3) for number in range(3))
        assert wakes == 1

    run(task)


def test_events_after_the_loop_has_closed_are_dropped() -> None:
    loop = asyncio.new_event_loop()
    send = EventBridge(loop).sender(Inbox())
    loop.close()
    send(ChunkDone(1, 1))


def test_a_start_error_is_found_in_serves_report() -> None:
    def factory(config: EngineConfig) -> Engine:
        raise ConfigError("file: key: rule\nsecond line")

    with pytest.raises(RuntimeError) as caught:
        EngineReplica(ServeConfig(), "r", factory)
    report = f"Deploying failed: The deployment failed.\nray::X() RuntimeError: {caught.value}\nbye"
    assert find_start_error(report) == "file: key: rule\nsecond line"
    unmarked = "Traceback:\n  File x\nImportError: cannot import torch\n"
    assert find_start_error(unmarked) == "ImportError: cannot import torch"
    assert find_start_error("\n") == "no reason was given"
