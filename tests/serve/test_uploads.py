"""Large requests between Ingress and Engine: in pieces of at most 2 MB, freed whatever happens."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from engine.errors import CapacityExceeded, InvalidRequest, PaceError, SessionDiverged
from engine.transcript import EMPTY_DIGEST, chain_digests
from engine.types import (
    Match,
    Message,
    PlanSegment,
    PlanUpdate,
    Sampling,
    ScoreRequest,
    TurnRequest,
)
from serve.calls import Admitted, Outcome
from serve.config import LimitsConfig, ServeConfig
from serve.engine_app import EngineReplica
from serve.engine_client import HandleClient
from serve.uploads import ABANDONED_S, Uploaded, Uploads, pack
from serve.wire.errors import EngineUnavailable
from tests.support.fake_engine import FakeEngine
from tests.support.local_handle import LocalHandle

MB = 1 << 20
MOST = 2 * MB + 1024  # a piece, and the names around it


class Spy(EngineReplica):
    """Notes the size of everything that is sent to it; ``calls`` are the methods called."""

    def __init__(self, engine: FakeEngine, limits: LimitsConfig | None = None) -> None:
        super().__init__(ServeConfig(limits=limits or LimitsConfig()), "r", lambda config: engine)
        self.sizes: list[int] = []
        self.calls: list[str] = []
        self.fail_at: int | None = None

    def _note(self, name: str, *args: object) -> None:
        self.sizes.append(len(pickle.dumps(args)))
        self.calls.append(name)

    async def upload(self, upload_id: str, at: int, piece: bytes) -> Outcome:
        self._note("upload", upload_id, at, piece)
        if self.fail_at is not None and at >= self.fail_at:
            raise asyncio.CancelledError  # the client is gone
        return await super().upload(upload_id, at, piece)

    async def discard(self, upload_id: str) -> None:
        self._note("discard", upload_id)
        await super().discard(upload_id)

    async def match(self, *args: Any) -> Outcome:
        self._note("match", *args)
        return await super().match(*args)

    async def call(self, method: str, *args: object) -> Outcome:
        self._note(method, *args)
        return await super().call(method, *args)

    async def turn(self, request: TurnRequest | Uploaded) -> AsyncIterator[Any]:
        self._note("turn", request)
        async for item in super().turn(request):
            yield item


class Cheap(FakeEngine):
    """One event for a whole prompt."""

    def __init__(self) -> None:
        super().__init__()
        self.prefill_chunk = 1 << 40


@pytest.fixture
def spy() -> Spy:
    return Spy(Cheap())


@pytest.fixture
def client(spy: Spy) -> HandleClient:
    return HandleClient(LocalHandle(spy))


def engine_of(spy: Spy) -> FakeEngine:
    engine = spy._engine
    assert isinstance(engine, FakeEngine)
    return engine


def run(task: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(task(), 60))


def turn(*texts: str, plan: PlanUpdate | None = None) -> TurnRequest:
    messages = tuple(Message("user", text) for text in texts)
    return TurnRequest("s", messages, sampling=Sampling(max_tokens=3), plan=plan or PlanUpdate())


ONE = turn("x" * 12 * MB)
MANY = turn(*(f"{number} " + "y" * 3000 for number in range(4000)))
ODD = turn("\ud800 é " * MB)  # tool arguments may hold lone surrogates
WIDE = turn("z", plan=PlanUpdate(segments=(PlanSegment(tuple(range(2_000_000)), ()),)))


@pytest.mark.parametrize("request_", [ONE, MANY, ODD, WIDE], ids=["one", "many", "odd", "wide"])
def test_a_turn_arrives_whole_in_small_pieces(
    request_: TurnRequest, spy: Spy, client: HandleClient
) -> None:
    async def task() -> None:
        items = client.turn(request_)
        assert isinstance(await anext(items), Admitted)
        async for _ in items:
            pass

    run(task)
    assert engine_of(spy).requests == [request_]
    assert max(spy.sizes) <= MOST
    # of the bytes there are, none is sent twice
    assert sum(spy.sizes) < len(pickle.dumps(request_)) + len(spy.sizes) * 1024
    assert spy.calls == ["upload"] * (len(spy.calls) - 1) + ["turn"]
    assert (len(spy._uploads), spy._uploads.held_bytes) == (0, 0)


def test_a_small_request_is_one_message(spy: Spy, client: HandleClient) -> None:
    async def task() -> None:
        async for _ in client.turn(turn("x" * (2 * MB - 4096))):
            pass
        await client.match("", "t", [b"d" * 16] * 100_000, False)

    run(task)
    assert spy.calls == ["turn", "match"] and max(spy.sizes) <= MOST


def test_scores_blueprints_and_digests_go_in_pieces_too(spy: Spy, client: HandleClient) -> None:
    engine = engine_of(spy)
    scored: list[ScoreRequest] = []
    score = engine.score
    engine.score = lambda request: (scored.append(request), score(request))[1]  # type: ignore

    async def task() -> None:
        async for _ in client.turn(turn("hello")):
            pass
        ask = ScoreRequest("s", MANY.messages, ("ab", "c"))
        result = await client.score(ask)
        assert [item.token_ids for item in result.continuations] == [(97, 98), (99,)]
        assert scored == [ask]
        said = (Message("user", "hello"), Message("assistant", "hel"))
        held = [EMPTY_DIGEST, *chain_digests(said)]
        found = await client.match("", "s", [*held, *[b"n" * 16] * 500_000], False)
        assert found == Match("s", "current", 2)
        with pytest.raises(SessionDiverged):
            await client.match("", "s", [b"n" * 16] * 500_000, False)
        with pytest.raises(PaceError, match="there is no session"):
            await client.score(ScoreRequest("none", ONE.messages, ("ab",)))

    run(task)
    assert max(spy.sizes) <= MOST and spy.calls.count("upload") > 12
    assert spy._uploads.held_bytes == 0


@pytest.mark.parametrize("fail_at", [0, 2 * MB, 8 * MB])
def test_an_upload_whose_client_is_gone_is_freed(
    fail_at: int, spy: Spy, client: HandleClient
) -> None:
    async def task() -> None:
        spy.fail_at = fail_at
        with pytest.raises(asyncio.CancelledError):
            await anext(client.turn(ONE))
        while "discard" not in spy.calls:
            await asyncio.sleep(0.01)
        assert spy._uploads.held_bytes == 0
        spy.fail_at = None
        async for _ in client.turn(ONE):
            pass

    run(task)
    assert engine_of(spy).requests == [ONE]
    assert not client._discards


def test_a_refused_turn_leaves_nothing(spy: Spy, client: HandleClient) -> None:
    async def task() -> None:
        engine_of(spy).stale = [InvalidRequest("no")]
        async with aclosing(client.turn(ONE)) as items:
            (failed,) = await anext(items)  # type: ignore[misc]
        assert isinstance(failed.error, InvalidRequest)

    run(task)
    assert spy._uploads.held_bytes == 0


def test_pieces_at_another_replica_are_a_reason_to_try_again(spy: Spy) -> None:
    async def task() -> None:
        items = spy.turn(Uploaded("elsewhere", 5))
        (failed,) = [item async for item in items]
        assert isinstance(failed[0].error, EngineUnavailable)
        for outcome in (
            await spy.match("", None, Uploaded("elsewhere", 5), False),
            await spy.call("score", Uploaded("elsewhere", 5)),
            await spy.upload("elsewhere", 7, b"abc"),
        ):
            with pytest.raises(EngineUnavailable):
                outcome.unwrap()

    run(task)


def test_what_is_held_is_bounded_in_bytes_and_time() -> None:
    now = 0.0
    held = Uploads(100, lambda: now)
    held.put("a", 0, b"x" * 60)
    with pytest.raises(CapacityExceeded):
        held.put("b", 0, b"x" * 41)
    held.put("b", 0, b"x" * 40)
    with pytest.raises(CapacityExceeded):
        held.put("a", 60, b"x")
    now = ABANDONED_S - 1
    held.discard("b")
    held.discard("b")
    held.put("a", 60, b"y" * 10)  # it is still being sent
    now = 2 * ABANDONED_S - 2
    held.put("c", 0, b"z" * 30)
    assert len(held) == 2 and held.held_bytes == 100
    now += 2
    held.sweep()
    assert len(held) == 1 and held.held_bytes == 30
    with pytest.raises(EngineUnavailable):
        held.put("a", 70, b"y")
    with pytest.raises(EngineUnavailable):
        held.put("c", 29, b"again")
    with pytest.raises(EngineUnavailable):
        held.take(Uploaded("c", 31))
    assert held.held_bytes == 0


def test_nobody_but_the_clock_frees_the_last_abandoned_upload(
    spy: Spy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve.uploads.ABANDONED_S", 0.0)
    monkeypatch.setattr("serve.engine_app.ABANDONED_S", -0.9)

    async def task() -> None:
        (await spy.upload("a", 0, pack("abc"))).unwrap()
        assert len(spy._uploads) == 1
        await asyncio.sleep(0.3)
        assert len(spy._uploads) == 0

    run(task)


@pytest.mark.parametrize("field", ["content", "tool_calls", "reasoning"])
def test_a_large_text_is_serialized_aside_wherever_it_stands(
    field: str, client: HandleClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop serves the other streams meanwhile."""
    loops: list[bool] = []

    def noted(value: object) -> bytes:
        try:
            asyncio.get_running_loop()
            loops.append(True)
        except RuntimeError:
            loops.append(False)
        return pack(value)

    monkeypatch.setattr("serve.engine_client.pack", noted)
    large = replace(Message("assistant", ""), **{field: "x" * MB})

    async def turn() -> None:
        async with aclosing(client.turn(TurnRequest("s", (large, Message("user", "q"))))) as items:
            await anext(items)

    asyncio.run(turn())
    assert loops == [False]
