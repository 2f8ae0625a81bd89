"""When memory is given back. That it is, and how much, is tested in test_deployment.py."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from starlette.types import Message, Receive, Scope, Send

from serve import memory
from serve.memory import LARGE_BYTES, MemoryMiddleware, MemoryReturn


@pytest.fixture
def returns(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The threads memory was given back in."""
    found: list[threading.Thread] = []
    monkeypatch.setattr(memory, "return_memory", lambda: found.append(threading.current_thread()))
    return found


def in_loop(act: Callable[[], object]) -> None:
    async def main() -> None:
        act()
        await asyncio.sleep(0.05)

    asyncio.run(main())


def test_once_after_several_large_requests_and_not_in_the_event_loop(
    returns: list[threading.Thread],
) -> None:
    back = MemoryReturn(delay_s=0.001)
    in_loop(lambda: [back.after(LARGE_BYTES) for _ in range(5)])
    assert len(returns) == 1 and returns[0] is not threading.main_thread()
    in_loop(lambda: back.after(LARGE_BYTES))
    assert len(returns) == 2


def test_not_after_small_requests(returns: list[threading.Thread]) -> None:
    back = MemoryReturn(delay_s=0.001)
    in_loop(lambda: [back.after(LARGE_BYTES - 1) for _ in range(5)])
    assert not returns


@pytest.mark.parametrize("fails", [False, True])
def test_the_middleware_counts_what_is_read(
    returns: list[threading.Thread], monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setattr(memory, "_DELAY_S", 0.001)
    pieces = [LARGE_BYTES // 2, LARGE_BYTES // 2]

    async def receive() -> Message:
        return {"type": "http.request", "body": bytes(pieces.pop()), "more_body": bool(pieces)}

    async def send(message: Message) -> None:
        raise AssertionError(message)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["more_body"]:
            assert not returns
        if fails:
            raise ConnectionError

    async def main() -> None:
        try:
            await MemoryMiddleware(app)({"type": "http"}, receive, send)
        except ConnectionError:
            assert fails
        await asyncio.sleep(0.05)

    asyncio.run(main())
    assert len(returns) == 1


def test_the_system_takes_it() -> None:
    memory.return_memory()
