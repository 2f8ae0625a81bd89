"""The Ingress's view of the engines: typed coroutines over a deployment handle."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import suppress
from typing import Any, Protocol

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from engine.errors import EngineFailure
from engine.types import (
    LedgerEvent,
    Match,
    Message,
    PlanUpdate,
    ScoreRequest,
    ScoreResult,
    TurnDone,
    TurnRequest,
    Window,
)
from serve.calls import Admitted, EngineInfo, Events
from serve.held_sessions import HeldSessions
from serve.uploads import PIECE_BYTES, Uploaded, pack, pieces
from serve.wire.errors import EngineUnavailable

_HEALTH_TIMEOUT_S = 5.0
# Texts with more characters are serialized in a thread, so that other streams go on meanwhile.
_PACK_ASIDE = 256 * 1024


class EngineClient(Protocol):
    """What the HTTP routes need. Every method may raise a ``PaceError``."""

    async def info(self) -> EngineInfo: ...

    async def match(
        self, namespace: str, session_id: str | None, digests: Sequence[bytes], append: bool
    ) -> Match: ...

    def turn(self, request: TurnRequest) -> AsyncIterator[Admitted | Events]: ...

    async def score(self, request: ScoreRequest) -> ScoreResult: ...

    async def sessions(self, namespace: str | None) -> list[dict[str, Any]]: ...

    async def session(self, namespace: str, session_id: str, check: bool) -> dict[str, Any]: ...

    async def events(
        self,
        namespace: str,
        session_id: str,
        since: int,
        limit: int | None,
        kinds: Collection[str],
    ) -> list[LedgerEvent]: ...

    async def residency(
        self,
        namespace: str,
        session_id: str,
        window: Window,
        layers: tuple[int, int | None],
        bins: int | None,
    ) -> dict[str, Any]: ...

    async def tokens(
        self, namespace: str, session_id: str, window: Window, resident: bool
    ) -> dict[str, Any]: ...

    async def steps(
        self, namespace: str, session_id: str, since: int, limit: int | None
    ) -> list[dict[str, Any]]: ...

    async def messages(self, namespace: str, session_id: str, window: Window) -> dict[str, Any]: ...

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
            as fast for streams as by reference through the object store; large ones in pieces
            (``serve.uploads``).
    """

    def __init__(self, handle: Any) -> None:
        self._unary = handle.options(_by_reference=False)
        self._stream = handle.options(stream=True, _by_reference=False)
        self._info: EngineInfo | None = None
        self._discards: set[asyncio.Future[None]] = set()
        self._held = HeldSessions()

    async def info(self) -> EngineInfo:
        """Model name and limits; asked once."""
        if self._info is None:
            self._info = await self._remote(self._unary.info)
        return self._info

    async def match(
        self, namespace: str, session_id: str | None, digests: Sequence[bytes], append: bool
    ) -> Match:
        """``Engine.match``. Raises SessionNotFound too when a session was lost with its engine and
        would be begun again by what is appended."""
        sent = await self._parcel(b"".join(digests))
        try:
            outcome = await self._remote(self._unary.match, namespace, session_id, sent, append)
        except BaseException:
            self._discard(sent)
            raise
        match: Match = outcome.unwrap()
        if append and session_id is not None and match.base == "new":
            self._held.check_begins(namespace, session_id)
        return match

    async def turn(self, request: TurnRequest) -> AsyncIterator[Admitted | Events]:
        """``EngineReplica.turn``; leaving the loop early cancels the turn."""
        sent = await self._parcel(request)
        response = self._stream.turn.remote(sent)
        arrived = False
        try:
            async for item in response:
                arrived = True
                if not isinstance(item, Admitted) and isinstance(item[-1], TurnDone):
                    self._held.add(request.namespace, request.session_id)
                yield item
        except (RayError, RayServeException) as error:
            raise _unavailable(error) from error
        finally:
            response.cancel()
            if not arrived:
                self._discard(sent)

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """``Engine.score``."""
        result: ScoreResult = await self._call("score", request)
        return result

    async def sessions(self, namespace: str | None) -> list[dict[str, Any]]:
        """``Engine.sessions``."""
        found: list[dict[str, Any]] = await self._call("sessions", namespace)
        return found

    async def session(self, namespace: str, session_id: str, check: bool) -> dict[str, Any]:
        """``Engine.session``."""
        found: dict[str, Any] = await self._call("session", namespace, session_id, check)
        return found

    async def events(
        self,
        namespace: str,
        session_id: str,
        since: int,
        limit: int | None,
        kinds: Collection[str],
    ) -> list[LedgerEvent]:
        """``Engine.events``."""
        found: list[LedgerEvent] = await self._call(
            "events", namespace, session_id, since, limit, kinds
        )
        return found

    async def residency(
        self,
        namespace: str,
        session_id: str,
        window: Window,
        layers: tuple[int, int | None],
        bins: int | None,
    ) -> dict[str, Any]:
        """``Engine.residency``."""
        asked = (namespace, session_id, window, layers, bins)
        found: dict[str, Any] = await self._call("residency", *asked)
        return found

    async def tokens(
        self, namespace: str, session_id: str, window: Window, resident: bool
    ) -> dict[str, Any]:
        """``Engine.tokens``."""
        found: dict[str, Any] = await self._call("tokens", namespace, session_id, window, resident)
        return found

    async def steps(
        self, namespace: str, session_id: str, since: int, limit: int | None
    ) -> list[dict[str, Any]]:
        """``Engine.steps``."""
        found: list[dict[str, Any]] = await self._call("steps", namespace, session_id, since, limit)
        return found

    async def messages(self, namespace: str, session_id: str, window: Window) -> dict[str, Any]:
        """``Engine.messages``."""
        found: dict[str, Any] = await self._call("messages", namespace, session_id, window)
        return found

    async def blueprint(
        self, namespace: str, session_id: str, change: PlanUpdate, policy: str | None
    ) -> dict[str, Any]:
        """``Engine.blueprint``."""
        kept: dict[str, Any] = await self._call("blueprint", namespace, session_id, change, policy)
        return kept

    async def delete(self, namespace: str, session_id: str) -> None:
        """``Engine.delete``."""
        self._held.forget(namespace, session_id)  # also when it was lost
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
        sent = await self._parcel(args)
        arguments = (sent,) if isinstance(sent, Uploaded) else args
        try:
            return (await self._remote(self._unary.call, method, *arguments)).unwrap()
        except BaseException:
            self._discard(sent)
            raise

    async def _parcel(self, value: object) -> object:
        """``value`` itself when it fits one message, else its place after an upload."""
        aside = _characters(value) > _PACK_ASIDE
        raw = await asyncio.to_thread(pack, value) if aside else pack(value)
        if len(raw) <= PIECE_BYTES:
            return value
        place = Uploaded(uuid.uuid4().hex, len(raw))
        try:
            for at, piece in pieces(raw):
                (await self._remote(self._unary.upload, place.upload_id, at, piece)).unwrap()
        except BaseException:
            self._discard(place)
            raise
        return place

    def _discard(self, sent: object) -> None:
        """Free what was uploaded for a call that may not have come. Waits for nothing."""
        if not isinstance(sent, Uploaded):
            return

        async def free() -> None:
            with suppress(EngineUnavailable):  # with the replica its uploads are gone
                await self._remote(self._unary.discard, sent.upload_id)

        task = asyncio.ensure_future(free())
        self._discards.add(task)  # the loop itself holds no task
        task.add_done_callback(self._discards.discard)

    async def _remote(self, method: Any, *args: object) -> Any:
        try:
            return await method.remote(*args)
        except (RayError, RayServeException) as error:
            raise _unavailable(error) from error


def _characters(value: object) -> int:
    """Length of the texts in a request, or in the arguments of a call."""
    if isinstance(value, tuple):
        return sum(map(_characters, value))
    if isinstance(value, TurnRequest | ScoreRequest):
        return _characters(value.messages)
    if isinstance(value, Message):
        return sum(len(text or "") for text in (value.content, value.tool_calls, value.reasoning))
    return len(value) if isinstance(value, bytes) else 0


def _unavailable(error: Exception) -> EngineUnavailable:
    return EngineUnavailable(
        f"no engine replica could answer ({type(error).__name__}); it is being replaced, try again"
    )
