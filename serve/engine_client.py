"""The Ingress's view of the engines: typed coroutines over a deployment handle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from engine.errors import EngineFailure
from engine.types import LedgerEvent, Match, PlanUpdate, ScoreRequest, ScoreResult, TurnRequest
from serve.calls import Admitted, EngineInfo, Events
from serve.wire.errors import EngineUnavailable

_HEALTH_TIMEOUT_S = 5.0


class EngineClient(Protocol):
    """What the HTTP routes need. Every method may raise a ``PaceError``."""

    async def info(self) -> EngineInfo: ...

    async def match(
        self, namespace: str, session_id: str | None, digests: Sequence[bytes], append: bool
    ) -> Match: ...

    def turn(self, request: TurnRequest) -> AsyncIterator[Admitted | Events]: ...

    async def score(self, request: ScoreRequest) -> ScoreResult: ...

    async def sessions(self, namespace: str | None) -> list[dict[str, Any]]: ...

    async def session(self, namespace: str, session_id: str) -> dict[str, Any]: ...

    async def events(self, namespace: str, session_id: str, since: int) -> list[LedgerEvent]: ...

    async def blueprint(
        self, namespace: str, session_id: str, change: PlanUpdate, policy: str | None
    ) -> dict[str, Any]: ...

    async def delete(self, namespace: str, session_id: str) -> None: ...

    async def stats(self) -> dict[str, float]: ...

    async def health(self) -> None: ...


class HandleClient:
    """``EngineClient`` over a Serve handle of ``EngineReplica``.

    Args:
        handle: the deployment handle. Messages go by value over gRPC, which is about twice
            as fast for streams as by reference through the object store.
    """

    def __init__(self, handle: Any) -> None:
        self._unary = handle.options(_by_reference=False)
        self._stream = handle.options(stream=True, _by_reference=False)
        self._info: EngineInfo | None = None

    async def info(self) -> EngineInfo:
        """Model name and limits; asked once."""
        if self._info is None:
            self._info = await self._remote(self._unary.info)
        return self._info

    async def match(
        self, namespace: str, session_id: str | None, digests: Sequence[bytes], append: bool
    ) -> Match:
        """``Engine.match``."""
        outcome = await self._remote(
            self._unary.match, namespace, session_id, b"".join(digests), append
        )
        match: Match = outcome.unwrap()
        return match

    async def turn(self, request: TurnRequest) -> AsyncIterator[Admitted | Events]:
        """``EngineReplica.turn``; leaving the loop early cancels the turn."""
        response = self._stream.turn.remote(request)
        try:
            async for item in response:
                yield item
        except (RayError, RayServeException) as error:
            raise _unavailable(error) from error
        finally:
            response.cancel()

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """``Engine.score``."""
        result: ScoreResult = await self._call("score", request)
        return result

    async def sessions(self, namespace: str | None) -> list[dict[str, Any]]:
        """``Engine.sessions``."""
        found: list[dict[str, Any]] = await self._call("sessions", namespace)
        return found

    async def session(self, namespace: str, session_id: str) -> dict[str, Any]:
        """``Engine.session``."""
        found: dict[str, Any] = await self._call("session", namespace, session_id)
        return found

    async def events(self, namespace: str, session_id: str, since: int) -> list[LedgerEvent]:
        """``Engine.events``."""
        found: list[LedgerEvent] = await self._call("events", namespace, session_id, since)
        return found

    async def blueprint(
        self, namespace: str, session_id: str, change: PlanUpdate, policy: str | None
    ) -> dict[str, Any]:
        """``Engine.blueprint``."""
        kept: dict[str, Any] = await self._call("blueprint", namespace, session_id, change, policy)
        return kept

    async def delete(self, namespace: str, session_id: str) -> None:
        """``Engine.delete``."""
        await self._call("delete", namespace, session_id)

    async def stats(self) -> dict[str, float]:
        """``Engine.stats``."""
        found: dict[str, float] = await self._call("stats")
        return found

    async def health(self) -> None:
        """Raises ``EngineUnavailable`` when the engine is stuck, dead or not there."""
        try:
            outcome = await asyncio.wait_for(self._remote(self._unary.health), _HEALTH_TIMEOUT_S)
            outcome.unwrap()
        except TimeoutError:
            raise EngineUnavailable("the engine does not answer") from None
        except EngineFailure as error:
            raise EngineUnavailable(error.message) from error

    async def _call(self, method: str, *args: object) -> Any:
        return (await self._remote(self._unary.call, method, *args)).unwrap()

    async def _remote(self, method: Any, *args: object) -> Any:
        try:
            return await method.remote(*args)
        except (RayError, RayServeException) as error:
            raise _unavailable(error) from error


def _unavailable(error: Exception) -> EngineUnavailable:
    return EngineUnavailable(
        f"no engine replica could answer ({type(error).__name__}); it is being replaced, try again"
    )
