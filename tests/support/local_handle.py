"""A Serve deployment handle without Serve: calls a replica object in the same event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any


class LocalHandle:
    """Stands for a ``DeploymentHandle`` of ``replica``, as far as ``HandleClient`` uses one.

    Attributes:
        fails: when set, every call raises it, as calls to a dead replica do.
    """

    def __init__(self, replica: Any, stream: bool = False) -> None:
        self.fails: Exception | None = None
        self._replica = replica
        self._stream = stream
        self._root = self

    def options(self, *, stream: bool = False, _by_reference: bool = True) -> LocalHandle:
        twin = LocalHandle(self._replica, stream)
        twin._root = self
        return twin

    def __getattr__(self, name: str) -> LocalMethod:
        return LocalMethod(getattr(self._replica, name), self._root, self._stream)


class LocalMethod:
    """One method of a handle."""

    def __init__(self, method: Callable[..., Any], handle: LocalHandle, stream: bool) -> None:
        self._method = method
        self._handle = handle
        self._stream = stream

    def remote(self, *args: object) -> Any:
        if self._stream:
            return LocalGenerator(self._method(*args), self._handle)
        return self._call(*args)

    async def _call(self, *args: object) -> Any:
        if self._handle.fails is not None:
            raise self._handle.fails
        return await self._method(*args)


class LocalGenerator:
    """The response of a streaming call."""

    def __init__(self, items: AsyncGenerator[Any, None], handle: LocalHandle) -> None:
        self._items = items
        self._handle = handle
        self._closing: asyncio.Task[None] | None = None

    def __aiter__(self) -> LocalGenerator:
        return self

    async def __anext__(self) -> Any:
        if self._handle.fails is not None:
            raise self._handle.fails
        return await anext(self._items)

    def cancel(self) -> None:
        """End the replica's generator, as Serve does when its caller leaves."""
        self._closing = asyncio.ensure_future(self._items.aclose())
